"""Programs, and how an episode's tests play them."""

import asyncio
from collections.abc import Sequence
from typing import Any

from broker.attempt import Reply
from broker.record import EpisodeRecord, GradedEpisode
from tests.fixtures.episodes import ScriptedModel, attempt, make_broker
from verifier.task import Task, Verdict

LOOP = """
def run(task, api):
    while True:
        api.generate([{"role": "user", "content": task["prompt"]}])
"""
TOOLS = """
def run(task, api):
    api.generate([{"role": "user", "content": task["prompt"]}])
    for code in CODES:
        seen = api.execute(code)
    api.submit(seen["stdout"])
"""
REPLIES = """
def run(task, api):
    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(5):
        text = api.generate(messages)
        result = api.submit(text)
        assert result["done"] is False
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": result["reply"]}]
"""


def tools(*codes: str) -> str:
    return TOOLS.replace("CODES", repr(codes))


async def play(
    code: str, *texts: str, sandboxes: Any = None, model: Any = None, **budgets: Any
) -> GradedEpisode:
    broker = make_broker(model or ScriptedModel(*(texts or ("<answer>A</answer>",))), sandboxes, **budgets)
    return await broker.run(attempt(code))


class Replying:
    """A researcher that gives these replies in turn and keeps what it was shown."""

    def __init__(self, replies: Sequence[Reply], seconds: float = 0.0) -> None:
        self._replies = list(replies)
        self._seconds = seconds
        self.seen: list[tuple[EpisodeRecord, str, Verdict]] = []

    async def reply(self, task: Task, record_so_far: EpisodeRecord, text: str, verdict: Verdict) -> Reply:
        self.seen.append((record_so_far, text, verdict))
        await asyncio.sleep(self._seconds)
        return self._replies[len(self.seen) - 1]


async def talk(code: str, researcher: Replying, *texts: str, **budgets: Any) -> GradedEpisode:
    broker = make_broker(ScriptedModel(*texts), **budgets)
    return await broker.run(attempt(code, mode="interaction"), researcher)
