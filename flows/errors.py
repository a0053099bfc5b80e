"""From exceptions to one line and an exit code. Codes: 0 done, 1 failed, 2 bad input, 3 something is missing
on this machine, 4 an identity does not match, 5 the model or a sandbox was lost, 130 interrupted."""

import sys
import traceback

import typer

from broker.errors import ModelUnavailable, SandboxLost
from catalog.errors import HandoffError, IdentityMismatch, StoreError
from flows.compose import ConfigError
from report.write import UnknownRun
from tasks.session import RunInUse
from verifier.release import ReleaseError

FAILED, BAD_INPUT, MISSING, MISMATCH, LOST, INTERRUPTED = 1, 2, 3, 4, 5, 130

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (ConfigError, BAD_INPUT),
    (typer.BadParameter, BAD_INPUT),
    (RunInUse, BAD_INPUT),
    (UnknownRun, BAD_INPUT),
    (FileNotFoundError, MISSING),
    (ModuleNotFoundError, MISSING),
    (ReleaseError, MISMATCH),
    (IdentityMismatch, MISMATCH),
    (HandoffError, MISMATCH),
    (ModelUnavailable, LOST),
    (SandboxLost, LOST),
    (StoreError, FAILED),
)


def exit_code(error: BaseException) -> int:
    """The exit code of an error, by its class."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def one_line(error: BaseException) -> str:
    """The error as one line; an unexpected kind shows its name."""
    text = " ".join(str(error).split()) or type(error).__name__
    known = any(isinstance(error, kind) for kind, _ in _CODES)
    return text if known else f"{type(error).__name__}: {text} (run again with --debug for the details)"


def report_and_exit(error: BaseException, *, debug: bool) -> None:
    """Print the error and leave with its code."""
    if debug:
        traceback.print_exception(error)
    print(f"rinr: {one_line(error)}", file=sys.stderr)
    raise typer.Exit(exit_code(error))
