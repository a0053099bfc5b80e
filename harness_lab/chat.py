"""A JSON conversation with any OpenAI-compatible chat endpoint. Must not know what is asked.

Small models wrap JSON in prose or fences, so the first JSON object in a text counts. A failure of the
endpoint, or an answer without an object, is an `AuxiliaryError`: recorded, and the step goes on (PROP-08).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from openai import AsyncOpenAI, OpenAIError

MAX_TOKENS: Final = 8192


class AuxiliaryError(Exception):
    """The auxiliary model is down, or what it said cannot be used. One line."""


class ChatEndpoint:
    """One chat model. `identity` pins it for the run (SCHED-07)."""

    def __init__(
        self, base_url: str, model: str, api_key: str = "none", *, timeout: float = 120.0, retries: int = 2
    ) -> None:
        self._client = AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout, max_retries=retries)
        self._model = model
        self.identity = f"chat:{model}@{base_url}"

    async def ask(self, messages: Sequence[Mapping[str, str]], *, temperature: float, seed: int = 0) -> str:
        """The text of one reply. Raises AuxiliaryError, also for an empty or a cut-off reply."""
        try:
            reply = await self._client.chat.completions.create(
                model=self._model,
                messages=cast("Any", list(messages)),
                temperature=temperature,
                seed=seed,
                max_tokens=MAX_TOKENS,
            )
        except OpenAIError as error:
            raise AuxiliaryError(
                f"auxiliary endpoint failed: {' '.join(str(error).split())[:300]}"
            ) from error
        choices = cast("Sequence[Any]", reply.choices or ())
        text = choices[0].message.content if choices else None
        if not isinstance(text, str) or not text.strip():
            raise AuxiliaryError("the auxiliary endpoint gave an empty reply")
        if choices[0].finish_reason == "length":
            raise AuxiliaryError("the auxiliary's reply was cut off at its length limit")
        return text

    async def close(self) -> None:
        await self._client.close()


def read_object(text: str) -> dict[str, Any]:
    """The first JSON object in a text. Raises AuxiliaryError when there is none.

    >>> read_object('Sure: {"reply": 1} ok')
    {'reply': 1}
    """
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        return cast("dict[str, Any]", value)
    raise AuxiliaryError("the auxiliary's reply holds no JSON object")
