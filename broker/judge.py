"""The judge of rubric criteria behind any OpenAI-compatible chat endpoint: pinned, at temperature 0.

An answer that cannot be read is asked for again, with the answer before it; after the last try, and when the
endpoint is down, it is a `JudgeError`. Every raw answer is kept. What is sent holds the private rubric, so it
goes to this endpoint only. Must not know what a judgement is worth.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from broker.chat_model import ChatClient
from broker.endpoint import Endpoint, EndpointSettings
from broker.errors import ModelUnavailable
from verifier.judge import Judge, Judged, JudgeError, judge_identity, messages_for, read_judgement
from verifier.outside import JudgeQuestion

_SEED: Final = 0


class JudgeSettings(BaseModel):
    """Which model judges rubric criteria, and how it is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none", "chat"] = "none"
    base_url: str | None = None
    model: str | None = None
    api_key_variable: str = "OPENAI_API_KEY"
    """The environment variable that holds the key. The key itself is never recorded."""
    max_tokens: int = Field(default=1024, ge=16)
    """Of one answer."""
    tries: int = Field(default=3, ge=1)
    """Answers to one question until one that can be read must have come."""
    endpoint: EndpointSettings = EndpointSettings(timeout_seconds=120)
    """Time-out, retries, rate limit and prices."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "chat" and not (self.base_url and self.model):
            raise ValueError("judge.kind=chat needs judge.base_url and judge.model")
        return self

    def identity(self) -> str:
        """What pins the judge (`verifier.judge.judge_identity`); empty without one."""
        if self.kind == "none":
            return ""
        asked = self.model_dump(mode="json", include={"base_url", "max_tokens", "tries"})
        return judge_identity(self.model or "", {**asked, "temperature": 0.0, "seed": _SEED})


class ChatJudge:
    """`verifier.judge.Judge` over HTTP."""

    def __init__(self, settings: JudgeSettings) -> None:
        """Raises ValueError for settings that name no judge."""
        if settings.base_url is None or settings.model is None:
            raise ValueError("these settings name no judge")
        self._settings = settings
        endpoint = Endpoint(
            settings.base_url,
            settings.endpoint,
            api_key=os.environ.get(settings.api_key_variable),
            key_hint=f"the environment variable {settings.api_key_variable}",
        )
        self.client = ChatClient(endpoint, settings.model)
        self.identity = settings.identity()

    def spending(self) -> str:
        return self.client.spending()

    async def judge(self, prompt: str, submission: str, questions: Sequence[JudgeQuestion]) -> list[Judged]:
        """All questions at once. Raises JudgeError as soon as one cannot be answered."""
        asked = [asyncio.ensure_future(self._one(prompt, submission, question)) for question in questions]
        try:
            return list(await asyncio.gather(*asked))
        finally:
            for question in asked:
                question.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def close(self) -> None:
        await self.client.close()

    async def _one(self, prompt: str, submission: str, question: JudgeQuestion) -> Judged:
        raw: list[str] = []
        problem = ""
        for _ in range(self._settings.tries):
            unread = raw[-1] if raw else None
            raw.append(await self._ask(messages_for(prompt, submission, question, unread)))
            try:
                return Judged(question.criterion, read_judgement(raw[-1]), tuple(raw))
            except JudgeError as error:
                problem = str(error)
        raise JudgeError(f"criterion {question.criterion!r}: {problem} ({len(raw)} answers)")

    async def _ask(self, messages: Sequence[dict[str, str]]) -> str:
        longest = self._settings.max_tokens
        parameters = {"temperature": 0.0, "seed": _SEED, "max_tokens": longest}
        try:
            answer = await self.client.ask(
                messages,
                parameters,
                longest=longest,
                prompt_tokens=sum(_estimate(message["content"]) for message in messages),
                count=_estimate,
            )
        except ModelUnavailable as error:
            raise JudgeError(f"the judge's endpoint failed: {' '.join(str(error).split())[:300]}") from error
        return answer.text


def _estimate(text: str) -> int:
    """Tokens by a rule of thumb, for an endpoint that reports no usage."""
    return len(text) // 4 + 1


def open_judge(settings: JudgeSettings) -> Judge | None:
    """The configured judge, or None."""
    return ChatJudge(settings) if settings.kind == "chat" else None
