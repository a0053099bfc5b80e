"""A recorded conversation with any OpenAI-compatible chat endpoint. Must not know what is asked.

What the endpoint does not take (structured output, a parameter) is learnt once (`manner.py`). A failure of
the endpoint, or a reply that is no text of a sane length, is an `AuxiliaryError`: recorded, and the step goes
on (PROP-08).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.chat_model import ChatAnswer, ChatClient
from broker.endpoint import Endpoint, EndpointRefused, EndpointSettings
from broker.errors import ModelUnavailable
from harness_lab.canary import MARK, require_clean
from harness_lab.exchange import LONGEST_KEPT, Exchange, Ledger, Role
from harness_lab.manner import Manner, Shape
from harness_lab.parsing import AuxiliaryError, read_object

__all__ = ["MAX_TOKENS", "AuxiliaryError", "ChatEndpoint", "ReplyCutOff", "Shape", "read_object"]

MAX_TOKENS: Final = 8192
LONGEST_REPLY: Final = LONGEST_KEPT
"""Characters; a program may have 64 KiB, escaped in JSON at most some three times that."""


class ReplyCutOff(AuxiliaryError):
    """The reply ended at its length limit: asking for a shorter one may help."""


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
        manner: Manner | None = None,
        max_tokens: int = MAX_TOKENS,
        ledger: Ledger | None = None,
    ) -> None:
        """`manner`: what is tried first. `max_tokens`: most tokens of a reply, its thoughts included."""
        endpoint = Endpoint(base_url, settings, api_key=api_key, key_hint=key_hint)
        self.client = ChatClient(endpoint, model)
        self.manner = manner or Manner()
        effort = f" effort={self.manner.effort}" if self.manner.effort else ""
        self.identity = f"chat:{model}@{base_url}{effort}"
        self.max_tokens = max_tokens
        self.ledger = ledger or Ledger()
        self.refusals: list[str] = []
        """What the endpoint said about the parameters that it does not take."""
        self.served = ""
        """The model's name by the endpoint's last answer."""

    async def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        temperature: float,
        seed: int = 0,
        shape: Shape | None = None,
        role: Role = "improver",
        subject: str = "",
    ) -> str:
        """The text of one reply, and an `Exchange` in the ledger whatever happens.

        `shape`: the JSON that is wanted, asked for in the way that this endpoint offers. Raises
        AuxiliaryError, also for an empty, a cut-off (`ReplyCutOff`) or an overlong reply; CanaryAlarm, and
        nothing is sent, when the messages hold a canary.
        """
        require_clean((message["content"] for message in messages), role)
        started = time.monotonic()
        said: ChatAnswer | None = None
        problem = "cancelled"
        parameters: dict[str, Any] = {}
        try:
            parameters, said = await self._ask(messages, temperature, seed, shape)
            _check(said)
            problem = ""
            return said.text
        except ModelUnavailable as error:
            problem = f"auxiliary endpoint failed: {' '.join(str(error).split())[:300]}"
            raise AuxiliaryError(problem) from error
        except AuxiliaryError as error:
            problem = str(error)
            raise
        finally:
            exchange = self._exchange(said, problem, time.monotonic() - started)
            kept = {"messages": tuple(dict(item) for item in messages), "parameters": parameters}
            self.ledger.add(exchange.model_copy(update={"role": role, "subject": subject, **kept}))

    async def close(self) -> None:
        await self.client.close()

    async def _ask(
        self, messages: Sequence[Mapping[str, str]], temperature: float, seed: int, shape: Shape | None
    ) -> tuple[dict[str, Any], ChatAnswer]:
        manner, refusals = self.manner, list[str]()
        while True:
            parameters = manner.parameters(
                temperature=temperature, seed=seed, max_tokens=self.max_tokens, shape=shape
            )
            try:
                answer = await self.client.ask(
                    messages,
                    parameters,
                    longest=self.max_tokens,
                    prompt_tokens=sum(_estimate(message["content"]) for message in messages),
                    count=_estimate,
                )
            except EndpointRefused as refused:
                poorer = manner.poorer(refused, shaped=shape is not None)
                if poorer is None:
                    raise
                manner = poorer
                refusals.append(refused.said)
                continue
            if refusals:
                self.manner = manner
                self.refusals += refusals
            self.served = answer.usage.served
            return parameters, answer

    def _exchange(self, said: ChatAnswer | None, problem: str, seconds: float) -> Exchange:
        usage = said.usage if said is not None else None
        return Exchange(
            role="improver",
            answered_by=self.identity,
            messages=(),
            reply=said.text[:LONGEST_KEPT] if said is not None else None,
            problem=problem,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
            reported=usage.reported if usage else True,
            cost=usage.cost if usage else None,
            requests=usage.requests if usage else 0,
            seconds=seconds,
        )


def _check(answer: ChatAnswer) -> None:
    if answer.finish_reason == "length":
        raise ReplyCutOff("the auxiliary's reply was cut off at its length limit")
    if answer.finish_reason == "content_filter" or not answer.text.strip():
        raise AuxiliaryError("the auxiliary endpoint gave an empty reply")
    if len(answer.text) > LONGEST_REPLY:
        raise AuxiliaryError(f"the auxiliary's reply is longer than {LONGEST_REPLY >> 10} KiB")
    if MARK.search(answer.text):
        # Nobody told it one, so the endpoint knows a release that it should not; its words go no further.
        raise AuxiliaryError("the auxiliary's reply quotes a canary of a private reference")


def _estimate(text: str) -> int:
    """Tokens of a text by a rule of thumb, for an endpoint that reports no usage."""
    return len(text) // 4 + 1
