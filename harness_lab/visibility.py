"""Who may see what: the paper's Table S2 as a table, one cell for each role and each kind of information.

The table enforces nothing by itself: the types do, and `tests/harness_lab/test_lab_visibility.py` builds each
role's real input with a mark in every kind of information and holds it against each cell. Where this table is
finer than the paper's, the paper's cell stands in the comment.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """Whoever is given something during a run."""

    TASK_POLICY = "task policy"
    """The task model, through a program."""
    SIMULATOR = "user simulator"
    INTERPRETER = "feedback judge"
    IMPROVER = "harness reflector"
    VERIFIER = "scientific verifier"
    LEARNER = "policy learner"
    """What the trainer turns into tokens and rewards."""


class Information(StrEnum):
    """What there is to be seen. The first four groups are the paper's columns."""

    QUESTION = "the public question"
    ANSWER = "the answer that was submitted"
    TRACE = "what the model said before it"
    OBSERVATION = "what tools returned"
    LATER = "what the model said after the reply"
    REPLY = "the researcher's reply"
    ALLOWED = "the replies that the case allows: correctness and submission status, in words"
    REFERENCE = "the private answer"
    VERDICT = "the verdict's own words: the answer as read, the reason"
    REWARD = "the trajectory's reward, 0 or 1"
    ANNOTATION = "readings of replies"
    SUMMARY = "aggregate Val comparisons of earlier steps"
    HELD_OUT = "questions and outputs of Val and Test"
    PROGRAM = "the parent program's text"
    INVENTORY = "the public inventory of tables"
    KEY = "the endpoint's key, as content"


MAY, NEVER = True, False

ACCESS: Final[Mapping[Role, Mapping[Information, bool]]] = {
    # Paper: visible prefix; the reply after the response; answer hidden; verdict through bounded feedback.
    Role.TASK_POLICY: {
        Information.QUESTION: MAY,
        Information.ANSWER: MAY,
        Information.TRACE: MAY,
        Information.OBSERVATION: MAY,
        Information.LATER: NEVER,
        Information.REPLY: MAY,
        Information.ALLOWED: NEVER,
        Information.REFERENCE: NEVER,
        Information.VERDICT: NEVER,
        Information.REWARD: NEVER,
        Information.ANNOTATION: NEVER,
        Information.SUMMARY: NEVER,
        Information.HELD_OUT: NEVER,
        Information.PROGRAM: NEVER,
        Information.INVENTORY: MAY,
        Information.KEY: NEVER,
    },
    # Paper: review context; produces the reply; answer hidden; correctness and submission status. Here the
    # host decides the case, so that all it learns of the verdict is which replies are allowed (FB-03).
    Role.SIMULATOR: {
        Information.QUESTION: MAY,
        Information.ANSWER: MAY,
        Information.TRACE: NEVER,
        Information.OBSERVATION: NEVER,
        Information.LATER: NEVER,
        Information.REPLY: MAY,
        Information.ALLOWED: MAY,
        Information.REFERENCE: NEVER,
        Information.VERDICT: NEVER,
        Information.REWARD: NEVER,
        Information.ANNOTATION: NEVER,
        Information.SUMMARY: NEVER,
        Information.HELD_OUT: NEVER,
        Information.PROGRAM: NEVER,
        Information.INVENTORY: NEVER,
        Information.KEY: NEVER,
    },
    # Paper: prior context; the observed reply; answer and verdict hidden.
    Role.INTERPRETER: {
        Information.QUESTION: MAY,
        Information.ANSWER: MAY,
        Information.TRACE: MAY,
        Information.OBSERVATION: MAY,
        Information.LATER: NEVER,
        Information.REPLY: MAY,
        Information.ALLOWED: NEVER,
        Information.REFERENCE: NEVER,
        Information.VERDICT: NEVER,
        Information.REWARD: NEVER,
        Information.ANNOTATION: NEVER,
        Information.SUMMARY: NEVER,
        Information.HELD_OUT: NEVER,
        Information.PROGRAM: NEVER,
        Information.INVENTORY: NEVER,
        Information.KEY: NEVER,
    },
    # Paper: the parent's public trace; the observed reply; answer hidden; evaluation summaries.
    Role.IMPROVER: {
        Information.QUESTION: MAY,
        Information.ANSWER: MAY,
        Information.TRACE: MAY,
        Information.OBSERVATION: MAY,
        Information.LATER: MAY,
        Information.REPLY: MAY,
        Information.ALLOWED: MAY,
        Information.REFERENCE: NEVER,
        Information.VERDICT: NEVER,
        Information.REWARD: NEVER,
        Information.ANNOTATION: MAY,
        Information.SUMMARY: MAY,
        Information.HELD_OUT: NEVER,
        Information.PROGRAM: MAY,
        Information.INVENTORY: MAY,
        Information.KEY: NEVER,
    },
    # Paper: the required output; reply not required; private access; produces the verdict. Of all splits.
    Role.VERIFIER: {
        Information.QUESTION: MAY,
        Information.ANSWER: MAY,
        Information.TRACE: NEVER,
        Information.OBSERVATION: NEVER,
        Information.LATER: NEVER,
        Information.REPLY: NEVER,
        Information.ALLOWED: NEVER,
        Information.REFERENCE: MAY,
        Information.VERDICT: NEVER,
        Information.REWARD: NEVER,
        Information.ANNOTATION: NEVER,
        Information.SUMMARY: NEVER,
        Information.HELD_OUT: MAY,
        Information.PROGRAM: NEVER,
        Information.INVENTORY: NEVER,
        Information.KEY: NEVER,
    },
    # Paper: the recorded policy input; replies not backfilled; answer not in the prompt; trajectory reward.
    Role.LEARNER: {
        Information.QUESTION: MAY,
        Information.ANSWER: MAY,
        Information.TRACE: MAY,
        Information.OBSERVATION: MAY,
        Information.LATER: NEVER,
        Information.REPLY: NEVER,
        Information.ALLOWED: NEVER,
        Information.REFERENCE: NEVER,
        Information.VERDICT: NEVER,
        Information.REWARD: MAY,
        Information.ANNOTATION: NEVER,
        Information.SUMMARY: NEVER,
        Information.HELD_OUT: NEVER,
        Information.PROGRAM: NEVER,
        Information.INVENTORY: MAY,
        Information.KEY: NEVER,
    },
}
