"""The client of one OpenAI-compatible completions endpoint: token ids both ways (HOST-06, HOST-12).

Everything the engine could choose by itself is sent with every request. What comes back is checked, never
repaired: failures are `ModelUnavailable`. Transport is the endpoint's part (`broker/endpoint.py`). Knows
nothing of episodes.
"""

from collections.abc import Sequence
from typing import Any, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker.endpoint import Endpoint, EndpointSettings, malformed
from broker.errors import ModelUnavailable
from broker.limiter import Limiter
from broker.model import Completion, Sampling
from catalog.digest import digest_json

_VOLATILE_MODEL_FIELDS = frozenset({"created", "permission"})
_ROUNDING = 1e-3
"""How far above 0 rounding may lift a log-probability."""


class CompletionsClient:
    """`TaskModel` over HTTP."""

    def __init__(
        self,
        base_url: str,
        model_name: str,
        settings: EndpointSettings | None = None,
        *,
        back_off: float = 1.0,
        sequences: Limiter | None = None,
        api_key: str | None = None,
        key_hint: str = "the server's key",
    ) -> None:
        """`base_url` with or without `/v1`; `back_off` in seconds, see `Endpoint`.

        `sequences`: how many requests the engine works on at once; give it if the engine would queue (T17).
        """
        root = base_url.rstrip("/").removesuffix("/v1") + "/v1"
        self.endpoint = Endpoint(root, settings, back_off=back_off, api_key=api_key, key_hint=key_hint)
        self.base_url = self.endpoint.base_url
        self.model_name = model_name
        self._sequences = sequences

    @property
    def requests(self) -> int:
        """Requests sent, repeats included."""
        return self.endpoint.requests

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """Generate once. Raises `ModelUnavailable`."""
        if self._sequences is None:
            return await self._complete(prompt_ids, sampling)
        async with self._sequences.slot():
            return await self._complete(prompt_ids, sampling)

    async def identity(self) -> str:
        """Digest of what the endpoint says of the model, address left out. Raises `ModelUnavailable`."""
        answer, _ = await self.endpoint.ask("GET", "/models", None, lambda value: value)
        entries = cast("list[Any]", answer.get("data") or [])
        known = [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
        for entry in known:
            if entry.get("id") == self.model_name:
                return digest_json({k: v for k, v in entry.items() if k not in _VOLATILE_MODEL_FIELDS})
        served = ", ".join(str(entry.get("id")) for entry in known) or "nothing"
        raise ModelUnavailable(
            f"{self.base_url} serves no model {self.model_name!r} (it serves {served}): set the model's name"
        )

    async def close(self) -> None:
        """Close the connections of the running event loop. May be called twice."""
        await self.endpoint.close()

    async def _complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        body = _request_body(self.model_name, prompt_ids, sampling)
        reserved = len(prompt_ids) + sampling.max_tokens
        completion, _ = await self.endpoint.ask(
            "POST",
            "/completions",
            body,
            lambda answer: _read_completion(answer, prompt_ids, sampling),
            tokens=reserved,
        )
        self.endpoint.give_back(sampling.max_tokens - len(completion.token_ids))
        return completion


def _request_body(model_name: str, prompt_ids: tuple[int, ...], sampling: Sampling) -> bytes:
    return orjson.dumps(
        {
            "model": model_name,
            "prompt": list(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": sampling.seed,
            "n": 1,
            "stream": False,
            "echo": False,
            "logprobs": 1,
            "return_token_ids": True,
            "add_special_tokens": False,
        }
    )


class _Wire(BaseModel):
    # Strict: a text "5" or a truth value is no token id.
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Logprobs(_Wire):
    token_logprobs: list[float] = []


class _Choice(_Wire):
    finish_reason: str | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Answer(_Wire):
    """The fields of a completions answer that are read; vLLM's names."""

    choices: list[_Choice] = Field(min_length=1, max_length=1)


def _read_completion(answer: dict[str, Any], prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
    try:
        choice = _Answer.model_validate(answer).choices[0]
    except ValidationError as error:
        raise malformed("the model endpoint", error) from error
    if choice.token_ids is None:
        raise ModelUnavailable(
            "the model endpoint returns no token ids: start vLLM >= 0.10.2 (its request option "
            "return_token_ids), or the embedded engine, or evaluate it as a chat endpoint (model=chat)"
        )
    if choice.prompt_token_ids is not None and tuple(choice.prompt_token_ids) != prompt_ids:
        raise ModelUnavailable("the model endpoint saw other prompt ids than were sent: it must not tokenise")
    ids, logprobs = choice.token_ids, choice.logprobs.token_logprobs if choice.logprobs else []
    check_generation(ids, logprobs, choice.finish_reason, sampling.max_tokens)
    return Completion.model_validate(
        {"token_ids": ids, "logprobs": logprobs, "finish_reason": choice.finish_reason}
    )


def check_generation(ids: Sequence[int], logprobs: Sequence[float], finish: str | None, limit: int) -> None:
    """What any engine that gives token ids must have kept to. Raises `ModelUnavailable`."""
    if not ids:
        raise ModelUnavailable("the model endpoint generated nothing, not even an end of turn")
    if min(ids) < 0:
        raise ModelUnavailable(f"the model endpoint generated the token id {min(ids)}, which cannot be")
    if len(logprobs) != len(ids):
        raise ModelUnavailable(
            f"the model endpoint returned {len(logprobs)} log-probabilities for {len(ids)} "
            "tokens: it must support logprobs beside return_token_ids"
        )
    if max(logprobs) > _ROUNDING:
        raise ModelUnavailable(f"the model endpoint returned a log-probability of {max(logprobs)}, above 0")
    if finish not in ("stop", "length"):
        raise ModelUnavailable(f"the model endpoint ended a generation with {finish!r}")
    if len(ids) > limit:
        raise ModelUnavailable(
            f"the model endpoint generated {len(ids)} tokens, {limit} were allowed: it ignores max_tokens"
        )
    if finish == "length" and len(ids) < limit:
        raise ModelUnavailable(
            f"the model endpoint cut a generation at {len(ids)} of {limit} tokens: its context is shorter "
            "than budgets.context_tokens"
        )
