"""The client of one OpenAI-compatible completions endpoint: token ids both ways (HOST-06, HOST-12).

Everything the engine could choose by itself is sent with every request. A request that failed in
transport (429, 5xx, broken connection) is repeated, for sampling is seeded and has no side effect; what
comes back is checked, never repaired. Failures are `ModelUnavailable`. The time of failed requests and of
waiting for a free sequence is not charged to the episode. Knows nothing else of episodes.
"""

import asyncio
import math
import time
from typing import Any, cast

import httpx
import orjson
from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from broker.clock import not_charged, refund
from broker.errors import ModelUnavailable
from broker.limiter import Limiter
from broker.model import Completion, Sampling
from catalog.digest import digest_json

_RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_VOLATILE_MODEL_FIELDS = frozenset({"created", "permission"})


class CompletionsClient:
    """`TaskModel` over HTTP. One connection pool per event loop, kept alive between calls."""

    def __init__(
        self,
        base_url: str,
        model_name: str,
        *,
        timeout: float = 600.0,
        attempts: int = 3,
        back_off: float = 1.0,
        sequences: Limiter | None = None,
        max_connections: int = 64,
        api_key: str | None = None,
    ) -> None:
        """`base_url` with or without `/v1`; `timeout` and `back_off` in seconds, the pause doubles.

        `sequences`: how many requests the engine works on at once; give it if the engine would queue (T17).
        """
        root = base_url.rstrip("/")
        self.base_url = root if root.endswith("/v1") else root + "/v1"
        self.model_name = model_name
        self.requests = 0
        """Requests sent, repeats included."""
        self._timeout = timeout
        self._attempts = attempts
        self._back_off = back_off
        self._sequences = sequences
        self._max_connections = max_connections
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """Generate once. Raises `ModelUnavailable`."""
        body = _request_body(self.model_name, prompt_ids, sampling)
        if self._sequences is None:
            answer = await self._ask("POST", "/completions", body)
        else:
            async with self._sequences.slot():
                answer = await self._ask("POST", "/completions", body)
        return _read_completion(answer, prompt_ids)

    async def identity(self) -> str:
        """Digest of what the endpoint says of the model, address left out. Raises `ModelUnavailable`."""
        answer = await self._ask("GET", "/models", None)
        entries = cast("list[dict[str, Any]]", answer.get("data") or [])
        for entry in entries:
            if entry.get("id") == self.model_name:
                return digest_json({k: v for k, v in entry.items() if k not in _VOLATILE_MODEL_FIELDS})
        served = ", ".join(str(entry.get("id")) for entry in entries) or "nothing"
        raise ModelUnavailable(
            f"{self.base_url} serves no model {self.model_name!r} (it serves {served}): set the model's name"
        )

    async def close(self) -> None:
        """Close the connections of the running event loop. May be called twice."""
        client, self._http = self._http, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            limits = httpx.Limits(
                max_connections=self._max_connections, max_keepalive_connections=self._max_connections
            )
            # Waiting for a pooled connection is our own queue, so it has no time-out. Proxies named in the
            # environment are left out: the task model is a service of the run.
            self._http = httpx.AsyncClient(
                timeout=httpx.Timeout(self._timeout, connect=10.0, pool=None),
                limits=limits,
                headers=self._headers,
                trust_env=False,
            )
            self._loop = loop
        return self._http

    async def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        problem = "no request was sent"
        for attempt in range(self._attempts):
            if attempt:
                with not_charged():
                    await asyncio.sleep(self._back_off * 2 ** (attempt - 1))
            asked = time.monotonic()
            try:
                self.requests += 1
                response = await self._client().request(
                    method, self.base_url + path, content=body, headers={"Content-Type": "application/json"}
                )
                if response.status_code not in _RETRIED_STATUS:
                    return _read_answer(response, self.base_url + path)
                problem = f"status {response.status_code}: {_excerpt(response)}"
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
            refund(time.monotonic() - asked)
        raise ModelUnavailable(
            f"the model endpoint {self.base_url} did not answer after {self._attempts} attempts ({problem}): "
            "start the server, or correct the model's address"
        )


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


def _excerpt(response: httpx.Response) -> str:
    return " ".join(response.text.split())[:200] or "empty answer"


def _read_answer(response: httpx.Response, url: str) -> dict[str, Any]:
    if response.status_code != 200:
        raise ModelUnavailable(
            f"{url} refused the request with status {response.status_code}: {_excerpt(response)}"
        )
    try:
        answer = orjson.loads(response.content)
    except orjson.JSONDecodeError as error:
        raise ModelUnavailable(f"{url} answered something that is not JSON: {_excerpt(response)}") from error
    if not isinstance(answer, dict):
        raise ModelUnavailable(f"{url} answered no JSON object: {_excerpt(response)}")
    return cast("dict[str, Any]", answer)


class _Logprobs(BaseModel):
    token_logprobs: list[float] = []


class _Choice(BaseModel):
    finish_reason: str | None
    token_ids: list[NonNegativeInt] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Answer(BaseModel):
    """The fields of a completions answer that are read; vLLM's names."""

    choices: list[_Choice] = Field(min_length=1)


def _read_completion(answer: dict[str, Any], prompt_ids: tuple[int, ...]) -> Completion:
    try:
        choice = _Answer.model_validate(answer).choices[0]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ModelUnavailable(
            f"the model endpoint's answer is malformed at {place}: {first['msg']}"
        ) from error
    if choice.token_ids is None:
        raise ModelUnavailable(
            "the model endpoint returns no token ids: start vLLM >= 0.10.2 (its request option "
            "return_token_ids), or the embedded engine, or use mode=harness with a chat endpoint"
        )
    logprobs = choice.logprobs.token_logprobs if choice.logprobs else []
    if not choice.token_ids:
        raise ModelUnavailable("the model endpoint generated nothing, not even an end of turn")
    if len(logprobs) != len(choice.token_ids) or not all(math.isfinite(value) for value in logprobs):
        raise ModelUnavailable(
            f"the model endpoint returned {len(logprobs)} log-probabilities for {len(choice.token_ids)} "
            "tokens (or one is not finite): it must support logprobs beside return_token_ids"
        )
    if choice.prompt_token_ids is not None and tuple(choice.prompt_token_ids) != prompt_ids:
        raise ModelUnavailable("the model endpoint saw other prompt ids than were sent: it must not tokenise")
    if choice.finish_reason not in ("stop", "length"):
        raise ModelUnavailable(f"the model endpoint ended a generation with {choice.finish_reason!r}")
    return Completion(
        token_ids=tuple(choice.token_ids), logprobs=tuple(logprobs), finish_reason=choice.finish_reason
    )
