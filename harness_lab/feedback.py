"""The simulated researcher of interactions: the host grades, the case decides what may be said, the auxiliary
picks the words (FB-01..04).

The verdict goes no further than `reply`: what is kept and what reaches the program are the words alone.
"""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from broker.attempt import Reply
from broker.record import EpisodeRecord
from harness_lab.auxiliary import Auxiliary
from harness_lab.chat import AuxiliaryError
from harness_lab.labels import Label
from harness_lab.replies import WORDINGS, ReplyCase, reply_case
from verifier.task import Task, Verdict


class GivenReply(BaseModel):
    """One reply as it was given. Public."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    label: ClassVar[Label] = "public"

    submission: int
    """Which submission of the episode it answers, from 0."""
    text: str
    accepted: bool
    allowed: tuple[str, ...]
    chosen_by: Literal["auxiliary", "fallback"]
    problem: str = ""
    """Why the fallback was used."""


class SimulatedResearcher:
    """Replies to the submissions of one interaction; `given` keeps what was said. One instance an episode."""

    def __init__(self, auxiliary: Auxiliary) -> None:
        self._auxiliary = auxiliary
        self.given: list[GivenReply] = []

    async def reply(self, task: Task, record_so_far: EpisodeRecord, text: str, verdict: Verdict) -> Reply:
        """Never raises: after a failure or a pick that is not allowed, the first wording is said."""
        submission = max(0, len(record_so_far.submissions) - 1)
        if submission == 0:
            self.given.clear()  # The broker may have started the episode again after a fault of ours.
        case = reply_case(record_so_far, verdict)
        allowed = WORDINGS[case]
        problem = ""
        try:
            said = await self._auxiliary.choose_reply(task.prompt, text, allowed)
            if said not in allowed:
                problem = "the pick is not one of the allowed replies"
        except AuxiliaryError as error:
            said, problem = "", str(error)
        if problem:
            said = allowed[0]
        given = GivenReply(
            submission=submission,
            text=said,
            accepted=case is ReplyCase.ACCEPTED,
            allowed=allowed,
            chosen_by="fallback" if problem else "auxiliary",
            problem=problem,
        )
        self.given.append(given)
        detail = {"chosen_by": given.chosen_by, "problem": problem}
        return Reply(text=said, accepted=given.accepted, detail=detail)
