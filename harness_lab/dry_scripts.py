"""What stands in for model, tools and researcher in a dry run.

Each script takes a program through other branches of an episode: no tool call, several, a failing one, cut
output, broken blocks, an empty text, a wrong form, budgets used up. Must not know what is compared.
"""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict


class Script(BaseModel):
    """One scripted episode. Texts and observations are given in turn; the last one repeats."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    texts: tuple[str, ...]
    observations: tuple[dict[str, Any], ...]
    reply: str


_NOTHING: Final[dict[str, Any]] = {"stdout": "", "error": ""}

SCRIPTS: Final = (
    Script(
        texts=("<execute>print(1)</execute>", "<answer>A</answer>", "B"),
        observations=({"stdout": "name: X1, value: 7\n", "error": ""},),
        reply="Please reconsider your answer.",
    ),
    Script(
        texts=("I am not sure.", "<execute>x</execute>", "<answer>7</answer>"),
        observations=({"stdout": "", "error": "NameError: name 'x' is not defined"},),
        reply="The answer could not be read.",
    ),
    Script(
        texts=("<answer>X1</answer>",),
        observations=(_NOTHING,),
        reply="Please reconsider your answer.",
    ),
)
"""A tool call and an answer; prose, a failing call, an answer; an answer after an empty look-up."""

MORE_SCRIPTS: Final = (
    Script(
        texts=("Let me look.\n<execute>\nprint(2)\n</execute>",),
        observations=({"stdout": "row " * 400, "error": "", "output_truncated": True},),
        reply="Please reconsider your answer.",
    ),
    Script(
        texts=(
            "<execute>a = 1</execute><execute>print(a)</execute>",
            "<execute>b = 2</execute> and then <execute>print(",
            "",
            "The answer is X1.",
        ),
        observations=(_NOTHING, _NOTHING, {"stdout": "", "error": "KeyError: 'value'"}),
        reply="I cannot read an answer here.",
    ),
    Script(
        texts=("<answer>A</answer> or <answer>B</answer>", "Answer: B", "<answer>B</answer>"),
        observations=({"stdout": "name: X1\nname: X2\nname: X3\n", "error": ""},),
        reply="The form is not what I asked for.",
    ),
    Script(
        texts=(
            "<execute>open('/lake/none.tsv')</execute>",
            "<execute>print(3)</execute>",
            "<answer>12.5</answer>",
        ),
        observations=(
            {"stdout": "", "error": "FileNotFoundError: [Errno 2] No such file: '/lake/none.tsv'"},
            {"stdout": "12.5\n", "error": ""},
        ),
        reply="I doubt this answer. Please go back to the data and check it.",
    ),
    Script(
        texts=("", "<answer></answer>", "  \n"),
        observations=(_NOTHING,),
        reply="Please repeat your answer inside one pair of tags.",
    ),
)
"""Budgets used up with cut output; broken and empty texts; two answers in one text; a wrong path; no text."""
