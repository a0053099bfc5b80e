"""A scripted inference client: what SkyRL's would answer, without SkyRL or a server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fixtures.episodes import template

Answer = dict[str, Any]
Policy = Callable[[dict[str, Any]], Awaitable[Answer] | Answer]


def said(text: str, limit: int, *, finish: str | None = None) -> Answer:
    """The answer of one generation of this text."""
    ids = [*template().encode_text(text), *template().end_ids[:1]]
    cut = ids[:limit]
    return {
        "responses": [text],
        "response_ids": [cut],
        "response_logprobs": [[-0.25] * len(cut)],
        "stop_reasons": [finish or ("stop" if cut == ids else "length")],
    }


class ScriptedClient:
    """`InferenceClient` whose answers a policy decides."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy
        self.weight_version = 3
        self.requests: list[dict[str, Any]] = []
        self.finished: list[str] = []
        self.open = 0
        self.asked = asyncio.Event()

    async def generate(self, input_batch: dict[str, Any]) -> Answer:
        self.requests.append(input_batch)
        self.open += 1
        self.asked.set()
        try:
            await asyncio.sleep(0)
            limit = input_batch["sampling_params"]["max_tokens"]
            if self.policy is None:
                return said("<answer>A</answer>", limit)
            answer = self.policy(input_batch)
            return await answer if isinstance(answer, Awaitable) else answer
        finally:
            self.open -= 1

    async def finish_session(self, session_id: str) -> None:
        self.finished.append(session_id)
