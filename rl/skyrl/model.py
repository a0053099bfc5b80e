"""SkyRL's inference client as a task model: prompt ids in, ids and log-probabilities out (HOST-06, HOST-12).

Calls are answered in the event loop that SkyRL's own client lives in, and only while a rollout is open: a
request that reaches an engine that sleeps would crash it. Must not know episodes, and imports no SkyRL.
"""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from broker.client import check_generation
from broker.errors import ModelUnavailable
from broker.model import Completion, Sampling

CALL_SECONDS: Final = 600.0
"""SkyRL's client waits for ever; an engine that hangs must be told from a slow one."""

_session: ContextVar[str | None] = ContextVar("skyrl_session", default=None)


class InferenceClient(Protocol):
    """What is used of `skyrl...RemoteInferenceClient`, the same in 0.3 and 0.4."""

    @property
    def weight_version(self) -> int: ...

    async def generate(self, input_batch: Any) -> Any: ...

    async def finish_session(self, session_id: str) -> None: ...


@contextmanager
def session(name: str) -> Generator[None]:
    """Model calls inside belong to this session: a router keeps them on one engine and its cached prefix."""
    token = _session.set(name)
    try:
        yield
    finally:
        _session.reset(token)


class SkyrlModel:
    """`TaskModel` over an `InferenceClient`. Closed until `open` is called."""

    def __init__(self, stop_ids: Sequence[int], *, seconds: float = CALL_SECONDS) -> None:
        """`stop_ids`: what ends a turn; vLLM by itself knows the tokenizer's one token only."""
        self._stop_ids = list(stop_ids)
        self._seconds = seconds
        self._client: InferenceClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, client: InferenceClient, loop: asyncio.AbstractEventLoop) -> None:
        """Answer calls with this client, in this loop, until `close`."""
        self._client, self._loop = client, loop

    def close(self) -> None:
        """Refuse every later call. Idempotent."""
        self._client = self._loop = None

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """Generate once. Raises `ModelUnavailable`, also for a call after the rollout."""
        client, loop = self._client, self._loop
        if client is None or loop is None:
            raise ModelUnavailable("the rollout is over: the inference engine takes no more calls")
        request = {
            "prompts": None,
            "prompt_token_ids": [list(prompt_ids)],
            "sampling_params": self._parameters(sampling),
            "session_ids": None if (name := _session.get()) is None else [name],
            # Prefixes of other weights must never be reused.
            "cache_salt": f"weights-{client.weight_version}",
        }
        work = asyncio.run_coroutine_threadsafe(client.generate(request), loop)
        try:
            async with asyncio.timeout(self._seconds):
                answer = await asyncio.wrap_future(work)
        except TimeoutError as error:
            raise ModelUnavailable(
                f"SkyRL's inference engine gave no answer within {self._seconds:.0f} s"
            ) from error
        except Exception as error:  # whatever its HTTP client, router or engine raises
            raise ModelUnavailable(
                f"SkyRL's inference client failed: {type(error).__name__}: {error}"
            ) from error
        return read_answer(answer, sampling)

    async def finish(self, name: str) -> None:
        """Tell the router that a session is over. Failures are the router's loss alone."""
        client, loop = self._client, self._loop
        if client is None or loop is None:
            return
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.finish_session(name), loop))
        except Exception:  # capacity that is not given back costs balance, never an episode
            return

    def _parameters(self, sampling: Sampling) -> dict[str, Any]:
        """All explicit: the defaults of an engine or a model folder must not change a phase (HOST-12)."""
        return {
            "n": 1,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": sampling.seed,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": self._stop_ids,
            "logprobs": 1,
            "skip_special_tokens": True,
        }


def read_answer(answer: Any, sampling: Sampling) -> Completion:
    """One `InferenceEngineOutput` of one prompt. Raises `ModelUnavailable` for what cannot be trained on."""
    try:
        (raw_ids,) = answer["response_ids"]
        (raw_logprobs,) = answer["response_logprobs"]
        (finish,) = answer["stop_reasons"]
        ids = tuple(int(value) for value in raw_ids)
        logprobs = tuple(float(value) for value in raw_logprobs)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelUnavailable(f"SkyRL's inference client answered something else: {error!r}") from error
    check_generation(ids, logprobs, finish, sampling.max_tokens)
    return Completion(token_ids=ids, logprobs=logprobs, finish_reason=finish)
