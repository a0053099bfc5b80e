"""Small records for the tests of the lab."""

from typing import Any

from broker.evaluation import Evaluation, TaskOutcome
from broker.model import Completion, Sampling
from broker.record import (
    EpisodeRecord,
    Message,
    ModelCall,
    ProgramError,
    StopReason,
    Submission,
    ToolCall,
)
from harness_lab.evidence import Interaction
from harness_lab.feedback import GivenReply
from harness_lab.fields import Fields, episode_tree
from harness_lab.replies import WORDINGS, ReplyCase
from verifier.task import AnswerFormat, Task

DIGEST = "sha256:" + "a" * 64


def a_task(task_id: str = "t1", **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": task_id,
        "split": "train",
        "family": "metals",
        "subtopic": "melting",
        "material_group": task_id,
        "prompt": f'At how many degrees does "{task_id}" melt?\nAnswer with <answer>number</answer>.',
        "answer_format": AnswerFormat.NUMBER,
    }
    return Task(**{**fields, **changes})


def tool_call(index: int = 0, *, stdout: str = "", error: str = "", after: int = -1) -> ToolCall:
    return ToolCall(
        index=index,
        after_model_call=after,
        code="print(1)",
        stdout=stdout,
        error=error,
        output_truncated=False,
        seconds=0.1,
    )


def model_call(index: int = 0, text: str = "It melts.") -> ModelCall:
    return ModelCall(
        index=index,
        messages=(Message(role="user", content="a question", source="task"),),
        prompt_ids=(1, 2),
        completion=Completion(token_ids=(3,), logprobs=(-0.1,), finish_reason="stop"),
        text=text,
        sampling=Sampling(temperature=1.0, seed=1, max_tokens=8),
        seconds=0.1,
    )


def record(
    task_id: str = "t1",
    *,
    tools: tuple[ToolCall, ...] = (),
    submissions: tuple[str, ...] = ("It melts.",),
    stop: StopReason = StopReason.PROGRAM_ENDED,
    crash: str | None = None,
) -> EpisodeRecord:
    return EpisodeRecord(
        task_id=task_id,
        harness=DIGEST,
        mode="interaction",
        model_calls=tuple(model_call(i, text) for i, text in enumerate(submissions or ("...",))),
        tool_calls=tools,
        submissions=tuple(Submission(text=text, after_model_call=i) for i, text in enumerate(submissions)),
        stop_reason=StopReason.CANDIDATE_ERROR if crash else stop,
        error=ProgramError(kind="crash", message=crash) if crash else None,
        seconds=1.0,
    )


def given(case: ReplyCase, submission: int = 0) -> GivenReply:
    return GivenReply(
        submission=submission,
        text=WORDINGS[case][0],
        accepted=case is ReplyCase.ACCEPTED,
        allowed=WORDINGS[case],
        chosen_by="auxiliary",
    )


def interaction(task_id: str = "t1", case: ReplyCase | None = None, **changes: Any) -> Interaction:
    """One interaction whose single submission was answered by `case`."""
    return Interaction(
        task=a_task(task_id),
        record=record(task_id, **changes),
        given=(given(case),) if case is not None else (),
    )


def one_episode(interaction: Interaction) -> Fields:
    """The fields of a single interaction, as an interpreter names them: `episode/question` and so on."""
    return Fields({"episode": lambda: episode_tree(interaction)})


def evaluation(
    right: set[int], *, total: int = 10, harness: str = DIGEST, errors: set[int] = frozenset(), **changes: Any
) -> Evaluation:
    """An evaluation on Val tasks v01, v02, ... of which `right` were answered right."""
    outcomes = tuple(
        TaskOutcome(
            task_id=f"v{number:02d}",
            family="metals",
            subtopic="melting",
            material_group=f"g{number // 2}",
            correct=number in right,
            format_valid=True,
            submitted=True,
            stop_reason=StopReason.FIRST_ANSWER,
            error="crash: ValueError" if number in errors else None,
            model_calls=1,
            tool_calls=0,
            tool_errors=0,
            answer_reason="",
        )
        for number in range(1, total + 1)
    )
    return Evaluation(**{"harness": harness, "split": "val", "seed": 1, "outcomes": outcomes, **changes})
