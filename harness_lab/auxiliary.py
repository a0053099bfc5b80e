"""The fixed second model: it picks a researcher's words and interprets them (FB-04, FB-05).

Two kinds behind one protocol: rules, which need no second model, and any chat endpoint. Must not see a
reference or a verdict; the allowed replies of an accepted answer say as much as the researcher would.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

from broker.endpoint import EndpointSettings
from catalog.digest import digest_json
from harness_lab.annotation import Annotation, InterpretationRequest
from harness_lab.chat import AuxiliaryError, ChatEndpoint, read_object
from harness_lab.replies import ReplyCase, case_of

RULES_IDENTITY: Final = "rules/1"


class Auxiliary(Protocol):
    """Never changes during a run."""

    identity: str

    async def choose_reply(self, question: str, answer: str, allowed: tuple[str, ...]) -> str:
        """One of `allowed`; the host checks that. Raises AuxiliaryError."""
        ...

    async def interpret(self, request: InterpretationRequest) -> Mapping[str, Any]:
        """The raw fields of an annotation; the host checks them. Raises AuxiliaryError."""
        ...

    async def close(self) -> None: ...


class RuleAuxiliary:
    """Deterministic: the wording by a digest, the interpretation by the reply's own words."""

    identity = RULES_IDENTITY

    async def choose_reply(self, question: str, answer: str, allowed: tuple[str, ...]) -> str:
        number = int(digest_json([question, answer])[-8:], 16)
        return allowed[number % len(allowed)]

    async def interpret(self, request: InterpretationRequest) -> Mapping[str, Any]:
        match case_of(request.reply):
            case ReplyCase.ACCEPTED:
                found = Annotation(
                    reward=1, type="acceptance", evidence="the answer was accepted", fields=("answer",)
                )
            case ReplyCase.INVALID_FORMAT:
                found = _correction(
                    "the answer could not be read", ("answer",), "show the form of the answer"
                )
            case ReplyCase.TOOL_FAILED:
                failed = next(i for i in reversed(range(len(request.tools))) if request.tools[i].error)
                fields = (f"tools/{failed}/code", f"tools/{failed}/error")
                found = _correction(
                    "the last tool call failed", fields, "look at the tables before using them"
                )
            case _ if not request.tools:
                found = _correction(
                    "the answer rests on no look-up", ("answer",), "look the subject up first"
                )
            case _:
                fields = ("answer", f"tools/{len(request.tools) - 1}/stdout")
                found = _correction(
                    "the answer may not follow from what was found", fields, "narrow what is read"
                )
        return found.model_dump(mode="json")

    async def close(self) -> None:
        return None


def _correction(evidence: str, fields: tuple[str, ...], hint: str) -> Annotation:
    return Annotation(reward=-1, type="correction", evidence=evidence, fields=fields, hint=hint)


_CHOOSE: Final = (
    "You play a researcher who reads an assistant's answer. Choose the most natural of the allowed replies. "
    'Reply with JSON only: {"reply": "<one allowed reply, word for word>"}.'
)
_INTERPRET: Final = (
    "You relate a researcher's reply to the record of an assistant's work. Reply with JSON only, exactly "
    'these keys: {"reward": -1|0|1, "type": "acceptance"|"correction"|"new_information"|"new_requirement"'
    '|"ambiguous", "evidence": text, "fields": [addresses from the given list], "hint": text}. '
    "Your reading is a hypothesis."
)


class ChatAuxiliary:
    """Any chat model behind the same two questions, at temperature 0."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint
        self.identity = endpoint.identity

    def spending(self) -> str:
        return self._endpoint.client.spending()

    async def choose_reply(self, question: str, answer: str, allowed: tuple[str, ...]) -> str:
        found = await self._ask(_CHOOSE, {"question": question, "answer": answer, "allowed": list(allowed)})
        reply = found.get("reply")
        if not isinstance(reply, str):
            raise AuxiliaryError("the auxiliary named no reply")
        return reply

    async def interpret(self, request: InterpretationRequest) -> Mapping[str, Any]:
        shown = {**request.model_dump(mode="json"), "addresses": sorted(request.addresses())}
        return await self._ask(_INTERPRET, shown)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _ask(self, instruction: str, shown: Mapping[str, Any]) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": instruction},
            {"role": "user", "content": json.dumps(shown)},
        ]
        return read_object(await self._endpoint.ask(messages, temperature=0.0))


def open_endpoint(
    base_url: str, model: str, api_key_variable: str, settings: EndpointSettings | None = None
) -> ChatEndpoint:
    """A chat endpoint whose key is read from the named environment variable (local servers need none)."""
    key = os.environ.get(api_key_variable)
    return ChatEndpoint(
        base_url, model, key, settings, key_hint=f"the environment variable {api_key_variable}"
    )


def open_auxiliary(
    base_url: str | None,
    model: str | None,
    api_key_variable: str = "OPENAI_API_KEY",
    settings: EndpointSettings | None = None,
) -> Auxiliary:
    """The configured auxiliary: rules unless an endpoint is named."""
    if base_url is None or model is None:
        return RuleAuxiliary()
    return ChatAuxiliary(open_endpoint(base_url, model, api_key_variable, settings))
