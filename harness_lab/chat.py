"""A JSON conversation with any OpenAI-compatible chat endpoint. Must not know what is asked.

Small models wrap JSON in prose or fences, so the first JSON object in a text counts. A failure of the
endpoint, or an answer without an object, is an `AuxiliaryError`: recorded, and the step goes on (PROP-08).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from broker.chat_model import ChatClient
from broker.endpoint import Endpoint, EndpointSettings
from broker.errors import ModelUnavailable

MAX_TOKENS: Final = 8192


class AuxiliaryError(Exception):
    """The auxiliary model is down, or what it said cannot be used. One line."""


class ChatEndpoint:
    """One chat model. `identity` pins it for the run (SCHED-07)."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        settings: EndpointSettings | None = None,
        *,
        key_hint: str = "the endpoint's key",
    ) -> None:
        endpoint = Endpoint(base_url, settings, api_key=api_key, key_hint=key_hint)
        self.client = ChatClient(endpoint, model)
        self.identity = f"chat:{model}@{base_url}"

    async def ask(self, messages: Sequence[Mapping[str, str]], *, temperature: float, seed: int = 0) -> str:
        """The text of one reply. Raises AuxiliaryError, also for an empty or a cut-off reply."""
        parameters = {"temperature": temperature, "seed": seed, "max_tokens": MAX_TOKENS}
        try:
            answer = await self.client.ask(
                messages,
                parameters,
                longest=MAX_TOKENS,
                prompt_tokens=sum(_estimate(message["content"]) for message in messages),
                count=_estimate,
            )
        except ModelUnavailable as error:
            raise AuxiliaryError(
                f"auxiliary endpoint failed: {' '.join(str(error).split())[:300]}"
            ) from error
        if answer.finish_reason == "length":
            raise AuxiliaryError("the auxiliary's reply was cut off at its length limit")
        if answer.finish_reason == "content_filter" or not answer.text.strip():
            raise AuxiliaryError("the auxiliary endpoint gave an empty reply")
        return answer.text

    async def close(self) -> None:
        await self.client.close()


def _estimate(text: str) -> int:
    """Tokens of a text by a rule of thumb, for an endpoint that reports no usage."""
    return len(text) // 4 + 1


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
