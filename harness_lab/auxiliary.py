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
from harness_lab.chat import MAX_TOKENS, AuxiliaryError, ChatEndpoint
from harness_lab.exchange import Exchange, Ledger, Role
from harness_lab.manner import Manner, Shape
from harness_lab.parsing import read_object
from harness_lab.replies import ReplyCase, case_of

RULES_IDENTITY: Final = "rules/2"
PROTOCOL: Final = 2
"""Version of what a chat auxiliary is asked and shown; part of its identity."""
_SHOWN: Final = 60_000
"""Characters of one request's record; what is longer is cut in its middle, part by part."""
_LEAST_SHOWN: Final = 400
_SUBJECT: Final = 80


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

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()

    async def choose_reply(self, question: str, answer: str, allowed: tuple[str, ...]) -> str:
        number = int(digest_json([question, answer])[-8:], 16)
        said = allowed[number % len(allowed)]
        self._keep("simulator", question, reply_request(question, answer, allowed), {"reply": said})
        return said

    async def interpret(self, request: InterpretationRequest) -> Mapping[str, Any]:
        answer = f"episode/submission/{request.submission}/text"
        match case_of(request.reply):
            case ReplyCase.ACCEPTED:
                found = Annotation(
                    reward=1, type="acceptance", evidence="the answer was accepted", fields=(answer,)
                )
            case ReplyCase.INVALID_FORMAT:
                found = _correction("the answer could not be read", (answer,), "show the form of the answer")
            case ReplyCase.TOOL_FAILED if any(tool.error for tool in request.tools):
                failed = max(place for place, tool in enumerate(request.tools) if tool.error)
                fields = (f"episode/tool/{failed}/code", f"episode/tool/{failed}/error")
                found = _correction(
                    "the last tool call failed", fields, "look at the tables before using them"
                )
            case _ if not request.tools:
                found = _correction("the answer rests on no look-up", (answer,), "look the subject up first")
            case _:
                fields = (answer, f"episode/tool/{len(request.tools) - 1}/stdout")
                found = _correction(
                    "the answer may not follow from what was found", fields, "narrow what is read"
                )
        annotation = found.model_dump(mode="json", exclude={"status"})
        self._keep("interpreter", request.question, interpretation_shown(request), annotation)
        return annotation

    async def close(self) -> None:
        return None

    def _keep(self, role: Role, subject: str, shown: Mapping[str, Any], said: Mapping[str, Any]) -> None:
        self._ledger.add(
            Exchange(
                role=role,
                answered_by=self.identity,
                subject=subject[:_SUBJECT],
                messages=({"role": "user", "content": json.dumps(shown)},),
                reply=json.dumps(said),
            )
        )


def _correction(evidence: str, fields: tuple[str, ...], hint: str) -> Annotation:
    return Annotation(reward=-1, type="correction", evidence=evidence, fields=fields, hint=hint)


_CHOOSE: Final = (
    "You play a researcher who reads an assistant's answer. Choose the most natural of the allowed replies; "
    "add nothing to it. Answer with one JSON object and nothing else: "
    '{"reply": "<one allowed reply, word for word>"}.'
)
_INTERPRET: Final = (
    "You relate a researcher's reply to the record of an assistant's work. You know neither the right answer "
    "nor any grade, and need not guess them: judge what the reply says. Answer with one JSON object and "
    'nothing else, with exactly these keys: {"reward": -1|0|1, "type": "acceptance"|"correction"|'
    '"new_information"|"new_requirement"|"ambiguous", "evidence": text, "fields": [addresses], '
    '"hint": text}. Acceptance is 1. A wish to check, to repair or to repeat what was asked before is a '
    "correction, -1. What is new, and what cannot be told, is 0. `evidence` says what the reply speaks "
    "about, `fields` holds addresses from the record (its keys), `hint` what a better procedure might do, "
    "or nothing. Your reading is a hypothesis."
)


def reply_request(question: str, answer: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    """All that a simulator is shown."""
    limit = _SHOWN // 2
    return {
        "question": _middle_cut(question, limit),
        "answer": _middle_cut(answer, limit),
        "allowed": [*allowed],
    }


def interpretation_shown(request: InterpretationRequest) -> dict[str, Any]:
    """All that an interpreter is shown: the parts of the record by address, the reply last."""
    parts = request.parts()
    limit = max(_LEAST_SHOWN, _SHOWN // len(parts))
    return {"record": {address: _middle_cut(text, limit) for address, text in parts.items()}}


def _middle_cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]} [{len(text) - limit} characters left out] {text[head - limit :]}"


def _choice_shape(allowed: tuple[str, ...]) -> Shape:
    return Shape("reply", _object_schema({"reply": {"type": "string", "enum": list(allowed)}}))


def _annotation_shape(request: InterpretationRequest) -> Shape:
    address = {"type": "string", "enum": sorted(request.addresses())}
    return Shape(
        "annotation",
        _object_schema(
            {
                "reward": {"type": "integer", "enum": [-1, 0, 1]},
                "type": {
                    "type": "string",
                    "enum": [
                        "acceptance",
                        "correction",
                        "new_information",
                        "new_requirement",
                        "ambiguous",
                    ],
                },
                "evidence": {"type": "string"},
                "fields": {"type": "array", "items": address},
                "hint": {"type": "string"},
            }
        ),
    )


def _object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


class ChatAuxiliary:
    """Any chat model behind the same two questions, at temperature 0."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint
        self.identity = f"{PROTOCOL}:{endpoint.identity}"

    async def choose_reply(self, question: str, answer: str, allowed: tuple[str, ...]) -> str:
        shown = reply_request(question, answer, allowed)
        found = await self._ask("simulator", _CHOOSE, shown, _choice_shape(allowed), question)
        reply = found.get("reply")
        if not isinstance(reply, str):
            raise AuxiliaryError("the auxiliary named no reply")
        return reply

    async def interpret(self, request: InterpretationRequest) -> Mapping[str, Any]:
        shown, shape = interpretation_shown(request), _annotation_shape(request)
        return await self._ask("interpreter", _INTERPRET, shown, shape, request.question)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _ask(
        self, role: Role, instruction: str, shown: Mapping[str, Any], shape: Shape, question: str
    ) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": instruction},
            {"role": "user", "content": json.dumps(shown, ensure_ascii=False)},
        ]
        said = await self._endpoint.ask(
            messages, temperature=0.0, shape=shape, role=role, subject=question[:_SUBJECT]
        )
        return read_object(said, shape.keys)


def open_endpoint(
    base_url: str,
    model: str,
    api_key_variable: str,
    settings: EndpointSettings | None = None,
    *,
    manner: Manner | None = None,
    max_tokens: int = MAX_TOKENS,
    ledger: Ledger | None = None,
) -> ChatEndpoint:
    """A chat endpoint whose key is read from the named environment variable (local servers need none)."""
    key = os.environ.get(api_key_variable) or None
    given = "holds the key that was refused" if key else "is not set"
    return ChatEndpoint(
        base_url,
        model,
        key,
        settings,
        key_hint=f"the environment variable {api_key_variable}, which {given}",
        manner=manner,
        max_tokens=max_tokens,
        ledger=ledger,
    )


def open_auxiliary(endpoint: ChatEndpoint | None, ledger: Ledger | None = None) -> Auxiliary:
    """The configured auxiliary: rules unless there is an endpoint."""
    return RuleAuxiliary(ledger) if endpoint is None else ChatAuxiliary(endpoint)
