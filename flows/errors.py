"""From exceptions to one line and an exit code.

Codes: 0 done, 1 failed, 2 bad input, 3 something is missing on this machine, 4 an identity does not match, 5
the model, a sandbox, the grader or the Prefect server was lost, 130 interrupted.
"""

import os
import sys
import traceback
from typing import Final, NoReturn

import typer

FAILED, BAD_INPUT, MISSING, MISMATCH, LOST, INTERRUPTED = 1, 2, 3, 4, 5, 130

# By name, for importing the classes would load every room before the first word of help.
_CODES: Final = {
    "ConfigError": BAD_INPUT,
    "BadParameter": BAD_INPUT,
    "RunInUse": BAD_INPUT,
    "UnknownRun": BAD_INPUT,
    "ReplayError": BAD_INPUT,
    "TokenIdsNeeded": BAD_INPUT,
    "EndpointFixed": BAD_INPUT,
    "UnknownHarness": BAD_INPUT,
    "FileNotFoundError": MISSING,
    "ModuleNotFoundError": MISSING,
    "ReleaseError": MISMATCH,
    "IdentityMismatch": MISMATCH,
    "HandoffError": MISMATCH,
    "ModelUnavailable": LOST,
    "AuxiliaryError": LOST,
    "SandboxLost": LOST,
    "GraderLost": LOST,
    "PrefectUnavailable": LOST,
    "StoreError": FAILED,
    "TrainingError": FAILED,
    "ExportRefused": FAILED,
    "CoverageError": FAILED,
    "LeakAlarm": FAILED,
    "PrivateData": FAILED,
    "CanaryAlarm": FAILED,
}


def _known(error: BaseException) -> int | None:
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((_CODES[name] for name in names if name in _CODES), None)


def exit_code(error: BaseException) -> int:
    """The exit code of an error, by its class."""
    code = _known(error)
    return FAILED if code is None else code


def one_line(error: BaseException) -> str:
    """The error as one line; an unexpected kind shows its name."""
    text = " ".join(str(error).split()) or type(error).__name__
    if _known(error) is not None:
        return text
    return f"{type(error).__name__}: {text} (run again with --debug for the details)"


def report_and_exit(error: BaseException, *, debug: bool) -> None:
    """Print the error and leave with its code."""
    _report(error, debug)
    raise typer.Exit(exit_code(error))


def leave_at_once(error: BaseException, *, debug: bool) -> NoReturn:
    """Print the error and leave with its code, past everything that would still be done at exit."""
    _report(error, debug)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code(error))


def _report(error: BaseException, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    print(f"rinr: {one_line(error)}", file=sys.stderr)
