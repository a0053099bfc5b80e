"""One HTTP endpoint of a model: what may pass is asked again, and no answer costs the host without bound.

A request that failed in transport, with 5xx, or with 429 is repeated, after what `Retry-After` says or after
a growing pause with jitter; sampling is seeded and has no side effect. One request has one deadline, from the
first byte sent to the last received, and its answer a largest size. The time of failed requests, pauses and
limits is not charged to the episode. Failures are `ModelUnavailable`. Must not know what is asked.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar, cast

import httpx
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker.clock import add_queued, not_charged, refund
from broker.errors import ModelUnavailable
from broker.limiter import Limiter
from broker.rate_limit import RateLimit

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""A completion of 4,096 tokens with its log-probabilities and 24,576 prompt ids takes less than one MiB."""
_CONNECT_SECONDS: Final = 10.0
_LONGEST_PAUSE: Final = 60.0
_TOO_EARLY: Final = frozenset({408, 425})
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_QUOTA_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Answers of status 429 that no waiting changes."""
_Value = TypeVar("_Value")


class EndpointSettings(BaseModel):
    """How patient the host is with an endpoint, how fast it may ask, and what it pays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout_seconds: float = Field(default=600.0, gt=0)
    """One request, whole."""
    attempts: int = Field(default=3, ge=1)
    """Requests until a failure that may pass counts as lasting."""
    patience_seconds: float = Field(default=600.0, ge=0)
    """How long a request waits in all while the endpoint says "not now" (429)."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Prompt and longest answer together, until the answer says how long it was."""
    prompt_price: float | None = Field(default=None, ge=0)
    """For a million prompt tokens, in any currency."""
    completion_price: float | None = Field(default=None, ge=0)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """By the configured prices; None when there are none."""
        if self.prompt_price is None and self.completion_price is None:
            return None
        price = prompt_tokens * (self.prompt_price or 0) + completion_tokens * (self.completion_price or 0)
        return price / 1e6


class PassingFailure(Exception):
    """An answer that cannot be used, where the next request may give one that can."""


class _NotNow(PassingFailure):
    """The endpoint asks to come again; `after` in seconds, None where it does not say when."""

    def __init__(self, problem: str, after: float | None) -> None:
        super().__init__(problem)
        self.after = after


class EndpointRefused(ModelUnavailable):
    """The endpoint works and refuses this request. `said` is its own text in one line."""

    def __init__(self, message: str, status: int, code: str, said: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.said = said


class Endpoint:
    """JSON over HTTP with one server. One connection pool per event loop, kept alive between calls."""

    def __init__(
        self,
        base_url: str,
        settings: EndpointSettings | None = None,
        *,
        back_off: float = 1.0,
        max_connections: int = 64,
        api_key: str | None = None,
        key_hint: str = "the endpoint's key",
    ) -> None:
        """`base_url` as it stands, `/v1` included; `back_off` in seconds, the pause doubles.

        `key_hint`: where the key is set, for the message when it is refused. The key itself is never told.
        """
        self.base_url = base_url.rstrip("/")
        self.settings = settings or EndpointSettings()
        self.requests = 0
        """Requests sent, repeats included."""
        self.answering = True
        """False from the moment that a request was given up until another one is answered."""
        self._back_off = back_off
        self._key = api_key
        self._key_hint = key_hint
        self._rate = RateLimit(self.settings.requests_per_minute, self.settings.tokens_per_minute)
        # Waiting for a connection is the host's own queue: counted, and never charged.
        self._connections = Limiter(max_connections)
        self._not_before = 0.0
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        read: Callable[[dict[str, Any]], _Value],
        *,
        tokens: int = 0,
    ) -> tuple[_Value, int]:
        """What `read` makes of the answer, and how many requests it took.

        `read` raises `PassingFailure` for an answer that is worth asking again for. `tokens`: see
        `EndpointSettings.tokens_per_minute`; what was not used is given back with `give_back`.
        """
        failures = refusals = requests = 0
        first_refusal = 0.0
        while True:
            await self._turn(tokens)
            requests += 1
            try:
                return await self._once(method, path, body, read), requests
            except _NotNow as not_now:
                refusals += 1
                first_refusal = first_refusal or time.monotonic()
                pause = self._pause(refusals) if not_now.after is None else not_now.after
                if time.monotonic() + pause - first_refusal > self.settings.patience_seconds:
                    self.answering = False
                    raise ModelUnavailable(
                        f"the model endpoint {self.base_url} says 'not now' ({not_now}) for longer than "
                        f"{self.settings.patience_seconds:g} s: lower concurrency, or set its "
                        "requests_per_minute and tokens_per_minute"
                    ) from not_now
                # What one request is told holds for all of them.
                self._not_before = max(self._not_before, time.monotonic() + pause)
            except PassingFailure as failure:
                failures += 1
                if failures >= self.settings.attempts:
                    self.answering = False
                    raise ModelUnavailable(
                        f"the model endpoint {self.base_url} did not answer after {failures} attempts "
                        f"({failure}): start the server, or correct the model's address"
                    ) from failure
                with not_charged():
                    await asyncio.sleep(self._pause(failures))

    def give_back(self, tokens: int) -> None:
        """Tokens that a request reserved and did not use; negative when it used more."""
        self._rate.give_back(tokens)

    async def close(self) -> None:
        """Close the connections of the running event loop. May be called twice."""
        client, self._http = self._http, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _turn(self, tokens: int) -> None:
        await self._rate.turn(tokens)
        while (wait := self._not_before - time.monotonic()) > 0:
            add_queued(wait)
            with not_charged():
                await asyncio.sleep(wait)

    def _pause(self, failures: int) -> float:
        # Jitter, so that requests that failed together do not come again together.
        return min(_LONGEST_PAUSE, self._back_off * 2 ** (failures - 1)) * random.uniform(1.0, 1.5)

    async def _once(
        self, method: str, path: str, body: bytes | None, read: Callable[[dict[str, Any]], _Value]
    ) -> _Value:
        async with self._connections.slot():
            asked = time.monotonic()
            try:
                self.requests += 1
                value = read(await self._exchange(method, self.base_url + path, body))
            except PassingFailure:
                refund(time.monotonic() - asked)
                raise
            self.answering = True
            return value

    async def _exchange(self, method: str, url: str, body: bytes | None) -> dict[str, Any]:
        seconds = self.settings.timeout_seconds
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(seconds),
                self._client().stream(method, url, content=body, headers=headers) as response,
            ):
                content = await _read_body(response, url)
        except TimeoutError:
            raise PassingFailure(f"no whole answer within {seconds:g} s") from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise ModelUnavailable(f"{url} is no address of a model endpoint: {error}") from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise PassingFailure(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        return self._read_answer(response, content, url)

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            url = httpx.URL(self.base_url)
            headers = {"Accept-Encoding": "identity"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._http = httpx.AsyncClient(
                # The deadline of a request is one for all of it, in `_exchange`.
                timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=self._connections.limit),
                headers=headers,
                # A service of this machine is never behind a proxy that the environment names.
                trust_env=url.host not in _LOOPBACK,
            )
            self._loop = loop
        return self._http

    def _read_answer(self, response: httpx.Response, content: bytes, url: str) -> dict[str, Any]:
        status, said = response.status_code, self._excerpt(content)
        if status == 200:
            try:
                answer = orjson.loads(content)
            except orjson.JSONDecodeError as error:
                raise ModelUnavailable(f"{url} answered something that is not JSON: {said}") from error
            if not isinstance(answer, dict):
                raise ModelUnavailable(f"{url} answered no JSON object: {said}")
            return cast("dict[str, Any]", answer)
        code, after = _error_code(content), _retry_after(response.headers)
        if (status == 429 and code not in _QUOTA_CODES) or (status >= 500 and after is not None):
            raise _NotNow(f"status {status}: {said}", after)
        if status in _TOO_EARLY or status >= 500:
            raise PassingFailure(f"status {status}: {said}")
        message = f"{url} refused the request with status {status}: {said}"
        if status in (401, 403):
            message += f" (set {self._key_hint})"
        if status == 404 and not self.base_url.endswith("/v1"):
            message += " (most addresses end in /v1)"
        raise EndpointRefused(message, status, code, said)

    def _excerpt(self, content: bytes) -> str:
        text = content[:4096].decode("utf-8", "replace")
        if self._key:
            # Some servers repeat the key that they refuse.
            text = text.replace(self._key, "[key]")
        return " ".join(text.split())[:200] or "empty answer"


async def _read_body(response: httpx.Response, url: str) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise ModelUnavailable(f"{url} compresses its answer although it was asked not to")
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise ModelUnavailable(
                f"{url} answered with more than {MAX_ANSWER_BYTES >> 20} MiB, which is no completion"
            )
    return bytes(content)


def _error_code(content: bytes) -> str:
    """OpenAI's `error.code`, or an empty text."""
    try:
        answer = orjson.loads(content)
        return str(answer["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the endpoint asks to wait: a number, or a date. None if it says nothing sensible."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def malformed(what: str, error: ValidationError) -> ModelUnavailable:
    """The failure of an answer that has not the fields it must have; names the first wrong one."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return ModelUnavailable(f"{what}'s answer is malformed at {place}: {first['msg']}")
