"""Evidence is public by the exact type of every part: when it is made, and when it leaves."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from lab_samples import a_task, evaluation, interaction, record
from pydantic import BaseModel, ValidationError

from broker.evaluation import Evaluation
from broker.record import EpisodeRecord, GradedEpisode
from harness_lab.annotation import InterpretationRequest
from harness_lab.evidence import EvidenceBundle, Interaction, bundle
from harness_lab.history import HistoryEntry
from harness_lab.labels import PrivateData, label_of, require_public
from harness_lab.replies import ReplyCase
from verifier.task import Verdict

ROOT = Path(__file__).parents[2]
SECRET = "CANARY-77aa"
VERDICT = Verdict(format_valid=True, correct=False, answer=SECRET, reason=SECRET)
SEEN = interaction("t1", ReplyCase.RECONSIDER)


class Annotated(EpisodeRecord):
    """A record that holds more than a record."""

    secret: str = SECRET


def smuggled() -> dict[str, Any]:
    """Each a value that got past pydantic, with something private inside."""
    graded = GradedEpisode(record=record(), verdict=VERDICT)
    return {
        "a graded episode for a record": SEEN.model_copy(update={"record": graded}),
        "a verdict among the notes": SEEN.model_copy(
            update={"record": record().model_copy(update={"notes": {"why": [VERDICT]}})}
        ),
        "a subclass with one more field": SEEN.model_copy(
            update={"record": Annotated.model_validate(record().model_dump())}
        ),
        "a Val task": SEEN.model_copy(update={"task": a_task("v1", split="val")}),
        "a Test task": SEEN.model_copy(update={"task": a_task("v1", split="test")}),
        "a Val evaluation": SEEN.model_copy(update={"given": (evaluation({1}),)}),
        "something without a label": SEEN.model_copy(update={"given": (Path("/references"),)}),
    }


@pytest.mark.spec("EVID-02")
def test_a_bundle_has_one_label_and_its_artifact_names_what_it_was_made_of() -> None:
    found = bundle([], [SEEN, interaction("t2", ReplyCase.ACCEPTED)])
    require_public(found)
    assert json.loads(found.model_dump_json())["labels"] == ["public"]
    body = found.artifact([("sha256:aa", 3), ("sha256:bb", 0)])
    assert body["labels"] == ["public"]
    assert body["interactions"][0] == {"record": "sha256:aa", "place": 3, "task": "t1"}
    assert [item["id"] for item in body["items"]] == ["e0:0"]


@pytest.mark.spec("EVID-02")
@pytest.mark.parametrize("how", list(smuggled()))
def test_what_is_private_or_unknown_can_neither_be_bundled_nor_written(how: str) -> None:
    seen = smuggled()[how]
    with pytest.raises(PrivateData):
        bundle([], [seen])
    past = EvidenceBundle.model_construct(labels=frozenset({"public"}), interactions=(SEEN, seen), items=())
    for write in (past.model_dump, past.model_dump_json, lambda: past.artifact([("sha256:aa", 0)] * 2)):
        with pytest.raises(Exception, match="evidence") as raised:
            write()
        assert SECRET not in str(raised.value)


@pytest.mark.spec("EVID-02")
@pytest.mark.parametrize("labels", [["private"], ["public", "private"], ["held_out"]])
def test_another_label_is_refused_when_a_bundle_is_read(labels: list[str]) -> None:
    body = {**bundle([], [SEEN]).model_dump(mode="json"), "labels": labels}
    with pytest.raises(ValidationError, match="labels"):
        EvidenceBundle.model_validate(body)


@pytest.mark.spec("EVID-02")
def test_every_type_that_evidence_can_hold_has_the_label_public() -> None:
    """A new type in a record or a task must be labelled by name before it can become evidence."""
    waiting: list[Any] = [EvidenceBundle, HistoryEntry, InterpretationRequest]
    seen: set[type[BaseModel]] = set()
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
            seen.add(kind)
            waiting += [field.annotation for field in kind.model_fields.values()]
    unlabelled = {kind.__name__ for kind in seen if label_of(kind) != "public"}
    assert not unlabelled, f"say what these are, in harness_lab/labels.py or by `label`: {unlabelled}"
    assert len(seen) > 15


@pytest.mark.spec("EVID-02")
def test_a_label_is_not_inherited_and_a_new_type_has_none() -> None:
    class Fresh(BaseModel):
        value: str = "x"

    class More(Interaction):
        verdict: str = SECRET

    for value in (Fresh(), More(task=SEEN.task, record=SEEN.record, given=())):
        with pytest.raises(PrivateData, match="no label"):
            require_public(value)


@pytest.mark.spec("EVID-02")
def test_verdicts_graded_episodes_and_evaluations_are_private() -> None:
    private: list[BaseModel] = [VERDICT, GradedEpisode(record=record(), verdict=VERDICT), evaluation({1})]
    for value in private:
        with pytest.raises(PrivateData, match="is private"):
            require_public(value)
    assert isinstance(private[-1], Evaluation)


@pytest.mark.slow
@pytest.mark.spec("EVID-02")
def test_mixing_in_something_private_is_a_type_error(tmp_path: Path) -> None:
    program = tmp_path / "mixing.py"
    program.write_text(
        "from broker.record import GradedEpisode\n"
        "from harness_lab.evidence import EvidenceBundle, Interaction\n"
        "from verifier.task import Task\n\n\n"
        "def mix(task: Task, graded: GradedEpisode, seen: Interaction) -> None:\n"
        "    Interaction(task=task, record=graded.record, given=())\n"
        "    Interaction(task=task, record=graded, given=())\n"
        "    EvidenceBundle(interactions=(graded,), items=())\n"
        '    EvidenceBundle(interactions=(seen,), items=(), labels=frozenset({"private"}))\n'
    )
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(json.dumps({"include": [str(program)], "extraPaths": [str(ROOT)], "strict": ["."]}))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pyright",
            "-p",
            str(settings),
            "--pythonpath",
            sys.executable,
            "--outputjson",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    wrong = {item["range"]["start"]["line"] + 1 for item in found if item["severity"] == "error"}
    assert wrong == {8, 9, 10}, found
