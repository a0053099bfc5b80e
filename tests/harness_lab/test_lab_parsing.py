"""The asked object is found in whatever a model wraps around it, and hostile text costs bounded time."""

import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_lab.parsing import AuxiliaryError, read_object

ASKED = {"reply": "Good."}
JSON = json.dumps(ASKED)


@pytest.mark.spec("FB-04", "PROP-04")
@pytest.mark.parametrize(
    "said",
    [
        JSON,
        f"  \n{JSON}\n",
        f"```json\n{JSON}\n```",
        f"```\n{JSON}\n``` I hope this helps.",
        f"Sure! Here it is: {JSON} Tell me more.",
        f'<think>maybe {{"reply": "no"}}?</think>{JSON}',
        f'maybe {{"reply": "no"}}\n</think>\n\n{JSON}',
        f"<THINKING>x</THINKING>\n```json\n{JSON}\n```",
        json.dumps({"answer": ASKED}),
        json.dumps({"result": {"output": ASKED}}),
        json.dumps({"reply": ASKED}),
        json.dumps({"content": JSON}),
        f"[{JSON}]",
        f'Not {{this}}, nor {{"other": 1}}, but {JSON}',
        f"{{ {JSON}",
    ],
)
def test_fences_prose_thoughts_and_wrappers_are_undone(said: str) -> None:
    assert read_object(said, ["reply"]) == ASKED


def test_a_program_that_holds_a_thinking_tag_or_a_fence_is_read_whole() -> None:
    code = 'def run(task, api):\n    x = {}\n    text = x.split("</think>")[-1]\n    """```json\n{}\n```"""'
    said = json.dumps({"command": "propose", "code": code})
    assert read_object(said, ["command"])["code"] == code


def test_without_the_wanted_keys_the_first_object_counts() -> None:
    assert read_object('{"a": 1} {"b": 2}', ["reply"]) == {"a": 1}
    assert read_object('{"a": {"b": 2}}') == {"a": {"b": 2}}


@pytest.mark.parametrize("said", ["", "no json", "{", "[1]", '{"a": ' * 2000, "null", '"text"', "{'a': 1}"])
def test_a_reply_without_an_object_is_an_auxiliary_error(said: str) -> None:
    with pytest.raises(AuxiliaryError):
        read_object(said, ["reply"])


@pytest.mark.parametrize("piece", ["{", '{"', '{"a":', "<think>", "```json\n{", "</think>{", '{"a":[', "{}"])
def test_hostile_text_costs_bounded_time(piece: str) -> None:
    said = piece * (256 * 1024 // len(piece))
    started = time.process_time()
    with contextlib.suppress(AuxiliaryError):
        read_object(said, ["reply"])
    assert time.process_time() - started < 2.0


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_gives_an_object_or_an_auxiliary_error(said: str) -> None:
    with contextlib.suppress(AuxiliaryError):
        assert isinstance(read_object(said, ["reply"]), dict)
