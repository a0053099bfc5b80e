"""The words said to a chat improver: templates in files, versioned by their digest (SCHED-07).

Must not know what the values are. A value is never read as a template.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from catalog.digest import digest_json


@cache
def templates() -> dict[str, str]:
    """Every template's text by its name."""
    folder = files("harness_lab.improver").joinpath("templates")
    found = sorted(folder.iterdir(), key=lambda item: item.name)
    return {
        item.name.removesuffix(".jinja"): item.read_text(encoding="utf-8")
        for item in found
        if item.name.endswith(".jinja")
    }


@cache
def digest() -> str:
    """Names the templates; part of an improver's identity."""
    return digest_json(templates())


@cache
def _environment() -> Environment:
    return Environment(
        loader=DictLoader(templates()), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def render(name: str, **values: Any) -> str:
    """One template with its values. A missing value is an error of ours."""
    return _environment().get_template(name).render(**values).strip()
