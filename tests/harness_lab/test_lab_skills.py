"""The skill file, its edits, and the improver that may change nothing else (PROP-09)."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_samples import interaction

from broker.budgets import Budgets
from broker.guidance import host_guidance, program_task
from broker.harness import Harness
from harness_lab.chat import ChatEndpoint
from harness_lab.check import check_program
from harness_lab.dryrun import dry_run, unchanged
from harness_lab.evidence import bundle
from harness_lab.improver.base import Proposal, ProposalContext, Skip, propose_all
from harness_lab.improver.skills import SkillsImprover
from harness_lab.replies import ReplyCase
from harness_lab.seed import seed_harness
from harness_lab.skill_file import (
    LONGEST_TEXT,
    MOST_SKILLS,
    Edit,
    Skill,
    SkillFileError,
    apply_edit,
    read_skill_file,
)
from tests.fixtures.episodes import ScriptedModel, a_task, attempt, make_broker, release
from tests.fixtures.fake_sandbox import FakeFactory
from tests.fixtures.stub_server import StubServer

SEED = seed_harness("skills").code
SCOPES = ("family:metals", "subtopic:melting")
ADD = {
    "action": "add",
    "kind": "skill",
    "name": "look up",
    "scope": "family:metals",
    "text": "Look the name up.",
}


def edited(code: str = SEED, **changes: Any) -> str:
    return apply_edit(code, Edit(**{**ADD, **changes}), SCOPES)


def frozen_lines(code: str) -> tuple[str, ...]:
    return read_skill_file(code).frozen


def test_the_seed_is_a_skill_file_in_canonical_form_and_passes_the_checks() -> None:
    file = read_skill_file(SEED)
    assert file.code() == SEED
    assert [entry.name for entry in file.instructions] == ["tool budget"]
    assert file.skills == ()
    checked = check_program(SEED)
    assert checked.errors == checked.notices == ()


async def test_the_seed_does_what_h0_does() -> None:
    inventory = release().inventory()
    tasks = [
        program_task(a_task(form), Budgets(), host_guidance(inventory), inventory, user_turns=1)
        for form in ("symbol", "letter")
    ]
    one, other = [await dry_run(FakeFactory(), Harness(code=c), tasks) for c in (SEED, seed_harness().code)]
    assert unchanged(one, other)


@pytest.mark.spec("PROP-09")
def test_one_skill_or_instruction_is_added_revised_and_removed_and_every_other_byte_stays() -> None:
    added = edited()
    assert read_skill_file(added).skills == (
        Skill(name="look up", scope="family:metals", text="Look the name up."),
    )
    revised = edited(added, action="revise", text="Look every name up.", scope="all")
    assert read_skill_file(revised).skills[0].scope == "all"
    noted = edited(revised, kind="instruction", name="be brief", scope=None, text="Be brief.")
    assert [entry.name for entry in read_skill_file(noted).instructions] == ["tool budget", "be brief"]
    for code in (added, revised, noted):
        assert frozen_lines(code) == frozen_lines(SEED)
        assert check_program(code, SEED).errors == ()
    back = apply_edit(added, Edit(action="remove", kind="skill", name="look up"), SCOPES)
    assert back == SEED


@pytest.mark.spec("PROP-09")
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"action": "remove", "scope": None, "text": None},
            "there is no skill 'look up' to remove: there are none",
        ),
        ({"action": "revise"}, "there is no skill 'look up' to revise"),
        ({"scope": None}, "a skill that is added needs a scope"),
        ({"text": None}, "a skill that is added needs a text"),
        ({"scope": "family:gwas"}, "scope 'family:gwas' is none of: all, family:metals, subtopic:melting"),
        ({"kind": "instruction"}, "an instruction has no scope"),
        (
            {"kind": "instruction", "name": "tool budget", "scope": None},
            "the instruction 'tool budget' is already there",
        ),
    ],
)
def test_an_edit_that_does_not_keep_to_the_schema_is_refused_in_one_line(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SkillFileError, match=problem.replace("(", r"\(")):
        edited(**changes)


@pytest.mark.spec("PROP-09")
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (seed_harness().code, "assigns INSTRUCTIONS and SKILLS once each"),
        (SEED + "SKILLS = []\n", "once each at top level"),
        (SEED.replace("SKILLS = []", "SKILLS = list()"), "must be a list of literal dictionaries"),
        (SEED.replace("SKILLS = []", "SKILLS = {}"), "SKILLS must be a list"),
        (SEED.replace("SKILLS = []", "SKILLS: list = []"), "without an annotation"),
        (SEED.replace("SKILLS = []", 'SKILLS = [{"name": "x", "text": "y"}]'), "skill 1, field scope"),
        (
            SEED.replace("SKILLS = []", 'SKILLS = [{"name": "X", "scope": "all", "text": "y"}]'),
            "skill 1, field name",
        ),
        (SEED.replace("SKILLS = []", 'SKILLS = [{"name": "x", "scope": "all", "text": " "}]'), "field text"),
        (SEED.replace("tool budget", "tool\nbudget"), "syntax error"),
    ],
)
def test_a_file_that_is_no_skill_file_is_refused_with_the_place(code: str, problem: str) -> None:
    with pytest.raises(SkillFileError, match=problem):
        read_skill_file(code)


@pytest.mark.spec("PROP-09")
def test_sizes_and_names_are_limited() -> None:
    with pytest.raises(ValueError, match="text"):
        Edit(**{**ADD, "text": "x" * (LONGEST_TEXT + 1)})
    code = SEED
    for number in range(MOST_SKILLS):
        code = edited(code, name=f"skill {number}")
    with pytest.raises(SkillFileError, match=f"at most {MOST_SKILLS} skills"):
        edited(code, name="one more")
    with pytest.raises(SkillFileError, match="canonical form"):
        edited(SEED.replace("SKILLS = []", "SKILLS = [ ]"))
    with pytest.raises(SkillFileError, match="canonical form"):
        edited(SEED.replace("SKILLS = []", "SKILLS = []; import os"))
    with pytest.raises(SkillFileError, match="changes nothing"):
        edited(edited(), action="revise")


@pytest.mark.spec("PROP-09")
@settings(max_examples=150, deadline=None)
@given(st.text(min_size=1, max_size=200), st.text(max_size=60))
def test_any_text_is_kept_as_it_is_and_changes_nothing_around_it(text: str, tail: str) -> None:
    base = SEED + "# " + tail.replace("\n", " ").replace("\r", " ").replace("\0", " ") + "\n"
    try:
        base.encode()
        read_skill_file(base)
        edit = Edit(**{**ADD, "text": text})
        added = apply_edit(base, edit, SCOPES)
    except (ValueError, SkillFileError):
        return
    assert read_skill_file(added).skills[0].text == edit.text
    assert frozen_lines(added) == frozen_lines(base)


@pytest.mark.spec("PROP-09")
async def test_a_skill_stands_in_the_prompts_of_its_scope_and_in_no_other() -> None:
    task = a_task()
    for scope, there in (
        ("all", True),
        (f"family:{task.family}", True),
        (f"subtopic:{task.subtopic}", True),
        ("family:another", False),
        ("subtopic:another", False),
    ):
        code = apply_edit(SEED, Edit(**{**ADD, "scope": scope, "text": "Marked."}), [scope])
        graded = await make_broker(ScriptedModel("<answer>1</answer>")).run(attempt(code, task))
        system = graded.record.model_calls[0].messages[0].content
        assert ("Marked." in system) is there, scope
        assert "You may run code 9 times." in system


CONTEXT = ProposalContext(
    evidence=bundle([], [interaction("t1", ReplyCase.RECONSIDER), interaction("t2", ReplyCase.RECONSIDER)]),
    inventory={"tables": []},
    budgets=Budgets(),
)
PROPOSE = {
    "command": "propose",
    "edit": ADD,
    "hypothesis": "look first",
    "rationale": "nothing was looked up",
    "evidence_ids": ["e0:0", "e1:0"],
}


async def ask(reply: Any, parent: str = SEED) -> tuple[Proposal | Skip, StubServer]:
    with StubServer(chat_policy=lambda _: json.dumps(reply)) as stub:
        improver = SkillsImprover(ChatEndpoint(stub.url, "m"))
        try:
            [made] = await propose_all(improver, Harness(code=parent), CONTEXT, 1)
            return made, stub
        finally:
            await improver.close()


@pytest.mark.spec("PROP-09", "PROP-04")
async def test_an_edit_over_the_wire_gives_the_file_with_that_one_entry() -> None:
    made, stub = await ask(PROPOSE)
    assert isinstance(made, Proposal)
    assert made.harness.code == edited()
    shown = stub.bodies[0]["messages"][-1]["content"]
    assert "Scopes that skills may have: all, family:metals, subtopic:melting" in shown
    removed = {**PROPOSE, "edit": {**ADD, "action": "remove", "scope": None, "text": None}}
    again, _ = await ask(removed, edited())
    assert isinstance(again, Proposal)
    assert again.harness.code == SEED


@pytest.mark.spec("PROP-09", "PROP-05")
@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ({**PROPOSE, "code": "def run(task, api): ..."}, "edits entries only: give an edit, and no code"),
        ({key: value for key, value in PROPOSE.items() if key != "edit"}, "needs an edit: an object"),
        ({**PROPOSE, "edit": [ADD]}, "needs an edit: an object"),
        ({**PROPOSE, "edit": {**ADD, "action": "rewrite"}}, "edit, field action"),
        ({**PROPOSE, "edit": {**ADD, "run": "x"}}, "edit, field run: Extra inputs"),
        ({**PROPOSE, "edit": {**ADD, "scope": "family:gwas"}}, "none of: all, family:metals"),
        ({**PROPOSE, "edit": {**ADD, "text": "If unsure, answer C."}}, "prefers an option"),
        ({**PROPOSE, "evidence_ids": ["e0:0"]}, "two to four"),
    ],
)
async def test_everything_else_is_refused_with_precise_words(reply: Any, problem: str) -> None:
    made, _ = await ask(reply)
    assert isinstance(made, Skip)
    assert made.kind == "failed"
    assert problem in made.reason


@pytest.mark.spec("PROP-09")
async def test_a_parent_that_is_no_skill_file_is_refused_without_a_call() -> None:
    made, stub = await ask(PROPOSE, seed_harness().code)
    assert isinstance(made, Skip)
    assert "the parent is no skill file" in made.reason
    assert stub.counts["chat"] == 0
