"""The templates of all pages, and how they are filled: nothing undefined, nothing unescaped."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from report.numbers import duration, percent


def environment() -> Environment:
    """The package's templates with the filters that pages share."""
    made = Environment(
        loader=PackageLoader("report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["percent"] = percent
    made.filters["duration"] = duration
    return made
