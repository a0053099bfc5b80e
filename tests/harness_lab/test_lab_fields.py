"""One grammar of addresses: every public field has one; an unknown one is told what is wrong."""

import json
from typing import Any

import pytest
from lab_samples import given, interaction, one_episode, tool_call

from broker.budgets import Budgets
from broker.harness import Harness
from harness_lab.annotation import Annotation
from harness_lab.evidence import Interaction, bundle
from harness_lab.fields import Fields, UnknownField
from harness_lab.improver.base import ProposalContext
from harness_lab.improver.view import fields
from harness_lab.replies import ReplyCase

NOTE = Annotation(reward=-1, type="correction", evidence="doubt", fields=("episode/question",), hint="look")
SEEN = interaction("t1", ReplyCase.RECONSIDER, tools=(tool_call(stdout="0123456789", error="KeyError"),))
SEEN = SEEN.model_copy(update={"annotations": ((0, NOTE),)})
OTHER = interaction("t2", ReplyCase.ACCEPTED)


def tree(*seen: Interaction) -> Fields:
    context = ProposalContext(
        evidence=bundle([], seen), inventory={"tables": [{"name": "metals.csv"}]}, budgets=Budgets()
    )
    return fields(Harness(code="def run(task, api): ..."), context)


@pytest.mark.spec("PROP-04", "EVID-01")
@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("program", "def run(task, api): ..."),
        ("episode/0/question", SEEN.task.prompt),
        ("episode/0/call/0/prompt", "[user] a question"),
        ("episode/0/call/0/text", "It melts."),
        ("episode/0/tool/0/stdout", "0123456789"),
        ("episode/0/tool/0/error", "KeyError"),
        ("episode/0/submission/0/text", "It melts."),
        ("episode/0/reply/0/text", given(ReplyCase.RECONSIDER).text),
        ("episode/0/annotation/0/hint", "look"),
        ("episode/0/annotation/0/status", "hypothesis"),
        ("episode/0/annotation/0/fields/0", "episode/0/question"),
        ("episode/1/stop_reason", "program_ended"),
        ("inventory/tables/0/name", "metals.csv"),
        ("budgets/model_calls", "9"),
        ("evidence/0/id", "e0:0"),
    ],
)
def test_a_field_is_found_by_its_address(address: str, text: str) -> None:
    assert tree(SEEN, OTHER).text(address) == text


@pytest.mark.spec("EVID-01")
def test_every_public_leaf_of_an_interaction_has_an_address_and_reads_back_as_it_is() -> None:
    found = tree(SEEN)
    public: dict[str, Any] = SEEN.model_dump(mode="json")
    for name in ("id", "split", "material_group"):
        public["task"].pop(name)
    [[_, note]] = public["annotations"]
    note["fields"] = ["episode/0/question"]
    wanted = {json.dumps(value, ensure_ascii=False) for value in _values(public)}
    read = {json.dumps(_back(found.text(address))) for address in found.addresses()}
    assert wanted <= read | {json.dumps(found.text(address)) for address in found.addresses()}
    assert len(found.addresses()) > 40


@pytest.mark.spec("PROP-04")
def test_a_field_is_read_from_an_offset_and_says_what_is_left() -> None:
    part = tree(SEEN).read("episode/0/tool/0/stdout", 3, 4)
    assert (part.text, part.offset, part.left) == ("3456", 3, 3)
    assert tree(SEEN).read("episode/0/tool/0/stdout", 10).text == ""
    with pytest.raises(UnknownField, match="has 10 characters, there is no offset 11"):
        tree(SEEN).read("episode/0/tool/0/stdout", 11)
    with pytest.raises(UnknownField, match="no offset -1"):
        tree(SEEN).read("episode/0/tool/0/stdout", -1)


@pytest.mark.spec("PROP-04")
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "'' is no field: there are program, inventory, budgets, history, episode, evidence"),
        ("references", "'references' is no field"),
        ("episode/9/question", "episode has no entry '9': it has 0 to 0"),
        ("episode/-1/question", "episode has no entry '-1'"),
        ("episode/0/call/7/text", "episode/0/call has no entry '7': it has 0 to 0"),
        ("episode/0/verdict", "episode/0 has no 'verdict'"),
        ("episode/0/source", "episode/0 has no 'source'"),
        ("episode/0/tool/0/code/0", "episode/0/tool/0/code is a single value"),
        ("history/0", "history has no entry '0': it has none"),
        ("program/" * 100, "at most 200 characters"),
    ],
)
def test_an_unknown_address_says_which_step_is_wrong_and_what_there_is(address: str, message: str) -> None:
    with pytest.raises(UnknownField) as raised:
        tree(SEEN).text(address)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.spec("FB-05")
def test_a_single_episode_leaves_its_number_out() -> None:
    assert one_episode(SEEN).text("episode/call/0/prompt") == tree(SEEN).text("episode/0/call/0/prompt")


def test_a_list_or_an_object_reads_as_json() -> None:
    assert json.loads(tree(SEEN).text("episode/0/annotation"))[0]["type"] == "correction"


def _values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _values(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in _values(item)]
    return [value]


def _back(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
