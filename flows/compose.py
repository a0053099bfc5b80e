"""Compose the configuration: Hydra files plus overrides, checked into a `RunConfig`.

Hydra is used once, in the command line; nothing below sees it. Its own entry point is not used, because it
would own the arguments and the working directory.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

import conf
from tasks.config import RunConfig

_GROUPS: Final = ("recipe", "model", "auxiliary", "judge")
"""Settings that choose a file of `conf/`."""


class ConfigError(Exception):
    """A setting that does not exist or cannot have that value; one line that names the fix."""


def setting_names(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every setting as a dotted path."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from setting_names(annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, [*setting_names(), *_GROUPS], n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else "; see `rinr run --help` for the settings"


def _check_names(overrides: Sequence[str]) -> None:
    known = {*setting_names(), *_GROUPS}
    for override in overrides:
        name, sign, _ = override.partition("=")
        name = name.lstrip("+~")
        if not sign:
            raise ConfigError(f"'{override}' is no override; write NAME=VALUE, e.g. seed=3")
        if name not in known:
            raise ConfigError(f"unknown setting '{name}'{_hint(name)}")


def compose_config(overrides: Sequence[str]) -> RunConfig:
    """The checked configuration of the given overrides, e.g. `["recipe=ci", "seed=3"]`.

    Raises ConfigError with one line for an unknown setting, an unknown recipe or a refused value.
    """
    _check_names(overrides)
    folder = str(Path(conf.__file__).parent)
    # A plus makes settings addable that the files leave empty (budgets.seconds under the paper's defaults).
    marked = [o if "." not in o.partition("=")[0] or o[0] in "+~" else f"++{o}" for o in overrides]
    try:
        with initialize_config_dir(folder, version_base="1.3"):
            composed = compose("config", overrides=marked)
            if missing := sorted(OmegaConf.missing_keys(composed)):
                wanted = " ".join(f"{name}=..." for name in missing)
                raise ConfigError(f"{' and '.join(missing)} must be given: add {wanted}")
            plain = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(" ".join(str(error).split())) from error
    return validate(cast("Mapping[str, Any]", plain))


def validate(plain: Mapping[str, Any]) -> RunConfig:
    """A `RunConfig` from plain values; ConfigError names the first setting that is refused and why."""
    try:
        return RunConfig.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"setting {name or 'combination'}: {_problem(name, first)}") from error


def _problem(name: str, found: ErrorDetails) -> str:
    said = found["msg"].removeprefix("Value error, ")
    if found["type"] == "extra_forbidden":
        return f"{said}{_hint(name)}"
    # A refused combination was given as a whole configuration, which says nothing on one line.
    return said if isinstance(found["input"], dict) else f"{said} (given: {found['input']!r})"
