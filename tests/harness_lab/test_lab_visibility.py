"""Table S2, cell by cell: each role's real input is built with a mark in every kind of information.

One small release whose every text is a mark, one interaction on the real broker, one RL episode, one proposal
that may read every field. What each role was given is then searched for each mark.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from broker.attempt import Attempt
from broker.broker import Broker
from broker.budgets import Budgets
from broker.guidance import host_guidance
from broker.harness import Harness
from broker.limiter import Limiter
from broker.record import GradedEpisode
from harness_lab.auxiliary import ChatAuxiliary
from harness_lab.chat import ChatEndpoint
from harness_lab.collect import collect
from harness_lab.evidence import EvidenceBundle, Interaction, bundle
from harness_lab.history import HistoryEntry, Tried
from harness_lab.improver.base import ProposalContext
from harness_lab.improver.llm import ChatImprover
from harness_lab.improver.view import fields
from harness_lab.replies import WORDINGS, ReplyCase
from harness_lab.visibility import ACCESS, Information, Role
from rl.rows import build_rows
from tests.fixtures.episodes import ScriptedModel, template
from tests.fixtures.fake_sandbox import FakeFactory
from tests.fixtures.stub_server import StubServer
from verifier.freeze import freeze
from verifier.grade import Grader
from verifier.release import Release
from verifier.task import AnswerFormat, Split, Task, Verdict

WORDING = WORDINGS[ReplyCase.TOOL_FAILED]
MARKS = {
    Information.QUESTION: "MARKquestion",
    Information.ANSWER: "MARKanswer",
    Information.TRACE: "MARKtrace",
    Information.OBSERVATION: "MARKobservation",
    Information.LATER: "MARKlater",
    Information.REPLY: WORDING[0],
    Information.ALLOWED: WORDING[1],
    Information.REFERENCE: "MARKreference",
    Information.VERDICT: "MARKverdict",
    Information.REWARD: "0.8125",
    Information.ANNOTATION: "MARKannotation",
    Information.SUMMARY: "MARKsummary",
    Information.HELD_OUT: "MARKheldout",
    Information.PROGRAM: "MARKprogram",
    Information.INVENTORY: "MARKinventory",
    Information.KEY: "MARKkey",
}
PROGRAM = """
# MARKprogram
def run(task, api):
    messages = [
        {"role": "system", "content": task["system"], "source": "harness"},
        {"role": "user", "content": task["prompt"], "source": "task"},
    ]
    messages.append({"role": "assistant", "content": api.generate(messages), "source": "model"})
    seen = api.execute("print('MARK' + 'observation')")
    messages.append({"role": "user", "content": seen["stdout"], "source": "tool"})
    api.execute("1 / 0")
    text = api.generate(messages)
    messages.append({"role": "assistant", "content": text, "source": "model"})
    reply = api.submit(text)["reply"]
    messages.append({"role": "user", "content": reply, "source": "feedback"})
    api.generate(messages)
"""
SAID = ("I think MARKtrace.", "<answer>MARKanswer</answer>", "But MARKlater.")


def marked_release(root: Path) -> Release:
    splits: tuple[tuple[str, Split], ...] = (("a", "train"), ("b", "train"), ("v", "val"), ("t", "test"))
    tasks = [
        Task(
            id=f"{name}-task",
            split=split,
            family="marks",
            subtopic="marks",
            material_group=name,
            prompt=f"{'MARKquestion' if split == 'train' else 'MARKheldout'} {name}?",
            answer_format=AnswerFormat.TEXT,
        )
        for name, split in splits
    ]
    return freeze(
        root / "marked",
        name="marked",
        licence="CC0-1.0",
        sources=["the test"],
        families={"marks": ["marks"]},
        tasks=tasks,
        references={task.id: {"answer": "MARKreference"} for task in tasks},
        lake={"MARKinventory.csv": b"name,value\nx,1\n"},
    )


class MarkingGrader(Grader):
    """The real grader, whose verdicts carry marks; keeps what it was asked."""

    def __init__(self, release: Release) -> None:
        super().__init__(release)
        self.asked: list[str] = []

    async def grade_aside(self, task_id: str, text: str, measured: Any = None) -> Verdict:
        self.asked.append(json.dumps([task_id, text, repr(measured)]))
        found = await super().grade_aside(task_id, text, measured)
        marks = {"answer": "MARKverdict", "reason": "MARKverdict", "score": 0.8125}
        return found.model_copy(update=marks)


def chat(body: dict[str, Any]) -> str:
    """Simulator: the first allowed reply. Interpreter: a marked reading. Improver: nothing to say."""
    shown = json.loads(body["messages"][-1]["content"]) if _is_json(body) else {}
    if "allowed" in shown:
        return json.dumps({"reply": shown["allowed"][0]})
    if "record" in shown:
        note = {"reward": -1, "type": "correction", "evidence": "x", "fields": [], "hint": "MARKannotation"}
        return json.dumps(note)
    return json.dumps({"command": "skip", "reason": "enough"})


def _is_json(body: dict[str, Any]) -> bool:
    try:
        return isinstance(json.loads(body["messages"][-1]["content"]), dict)
    except ValueError:
        return False


def summary() -> HistoryEntry:
    tried = Tried(harness="sha256:x", hypothesis="MARKsummary", outcome="not better", correct=3)
    return HistoryEntry(
        cycle=1, step=1, parent="sha256:y", parent_correct=4, total=9, adopted=False, tried=(tried,)
    )


async def inputs(root: Path) -> dict[Role, str]:
    """What each role was given."""
    release, harness = marked_release(root), Harness(code=PROGRAM)
    model = ScriptedModel(*SAID)
    with MarkingGrader(release) as grader, StubServer(chat_policy=chat) as stub:
        broker = Broker(
            model=model,
            template=template(),
            sandboxes=FakeFactory(),
            grader=grader,
            release=release,
            budgets=Budgets(user_turns=1),
            guidance=host_guidance(release.inventory()),
            limiter=Limiter(1),
        )
        endpoint = ChatEndpoint(stub.url, "m", "MARKkey")
        found = await collect(broker, harness, release.split("train"), ChatAuxiliary(endpoint), 1)
        policy = list(model.prompts)
        asked = [json.dumps(body) for body in stub.bodies]
        simulator = [text for text in asked if "allowed replies" in text]
        interpreter = [text for text in asked if "relate a researcher" in text]
        improver = await improved(endpoint, stub, harness, found.interactions, release)
        learner = await learned(broker, harness, release.split("train")[0])
        await endpoint.close()
    assert simulator
    assert interpreter
    private = [path.read_text() for path in release.root.rglob("*.jsonl")]
    return {
        Role.TASK_POLICY: "\n".join(policy),
        Role.SIMULATOR: "\n".join(simulator),
        Role.INTERPRETER: "\n".join(interpreter),
        Role.IMPROVER: improver,
        Role.VERIFIER: "\n".join([*grader.asked, *private]),
        Role.LEARNER: learner,
    }


async def improved(
    endpoint: ChatEndpoint,
    stub: StubServer,
    harness: Harness,
    seen: tuple[Interaction, ...],
    release: Release,
) -> str:
    """What a proposal was sent, and every field that it could have read."""
    evidence: EvidenceBundle = bundle([], seen)
    context = ProposalContext(
        evidence=evidence,
        inventory=release.inventory().model_dump(mode="json"),
        history=(summary(),),
        budgets=Budgets(),
    )
    before = len(stub.bodies)
    await ChatImprover(endpoint).propose(harness, context, 0, 1)
    readable = fields(harness, context)
    texts = [readable.text(address) for address in readable.addresses()]
    return "\n".join([*(json.dumps(body) for body in stub.bodies[before:]), *texts])


async def learned(broker: Broker, harness: Harness, task: Task) -> str:
    """The rows of one RL episode, decoded."""
    graded: GradedEpisode = await broker.run(
        Attempt(task=task, harness=harness, mode="rl", temperature=1.0, seed=1)
    )
    rows = build_rows([graded], [task.id], 1, "rubric").rows
    return "\n".join(
        f"{template().decode(row.prompt_ids)} {template().decode(row.completion_ids)} {row.rewards}"
        for row in rows
    )


@pytest.fixture(scope="module")
async def given() -> dict[Role, str]:
    with tempfile.TemporaryDirectory(prefix="rinr-marks-") as folder:
        return await inputs(Path(folder))


@pytest.mark.spec("FB-05", "EVID-02", "PROP-03", "RL-06")
@pytest.mark.parametrize("information", list(Information))
@pytest.mark.parametrize("role", list(Role))
async def test_a_role_sees_what_its_cell_allows_and_nothing_else(
    given: dict[Role, str], role: Role, information: Information
) -> None:
    assert (MARKS[information] in given[role]) == ACCESS[role][information]


def test_every_role_has_a_cell_for_everything() -> None:
    assert set(ACCESS) == set(Role)
    assert all(set(row) == set(Information) == set(MARKS) for row in ACCESS.values())


@pytest.mark.parametrize(
    ("role", "hidden"),
    [(role, item) for role in Role if role is not Role.VERIFIER for item in (Information.REFERENCE,)],
)
def test_only_the_verifier_has_the_private_answer(role: Role, hidden: Information) -> None:
    assert ACCESS[Role.VERIFIER][hidden]
    assert not ACCESS[role][hidden]
