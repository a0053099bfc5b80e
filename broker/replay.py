"""Run a program again on a recorded episode and compare every byte that it sends (HOST-05, `rinr replay`).

The recorded completions, observations and replies stand in for model, tools and researcher, so nothing is
needed but the program, its task and a controller sandbox. The same program on the same answers must send the
same messages, code and submissions; the first place where it does not is a `Divergence`. A program that reads
the clock or draws random numbers may diverge, and then what it sent depends on more than what it was told.

Must not know where records, programs and releases are kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict

from broker.controller import Controller, Ended, Event, Execute, Generate, Submit
from broker.errors import HarnessError
from broker.guidance import program_task, public_texts
from broker.harness import Harness
from broker.history import as_chat
from broker.messages import Ledger, read_messages
from broker.record import EpisodeRecord, Given, Message, ModelCall, StopReason, request_digest
from broker.sandbox.base import SandboxFactory
from broker.template import ChatTemplate
from broker.tools import clean_code
from catalog.digest import digest_json
from verifier.release import Release, ReleaseError

_EXCERPT: Final = 60
_BEFORE: Final = 20
_Kind = Literal["generate", "execute", "submit"]
_NAMES: Final[Mapping[str, str]] = {
    "generate": "model call",
    "execute": "tool call",
    "submit": "submission",
}
_ENDS_WITH_LAST_EVENT: Final = frozenset(
    {
        StopReason.FIRST_ANSWER,
        StopReason.ACCEPTED,
        StopReason.OUTPUT_TRUNCATED,
        StopReason.CONTENT_FILTERED,
        StopReason.TOOL_TIMEOUT,
        StopReason.OUT_OF_MEMORY,
        StopReason.TIME_BUDGET,
    }
)
"""The host ended these while the program waited for an answer, or while it was busy with itself."""
_MAY_HAVE_ASKED: Final[Mapping[StopReason, _Kind]] = {
    StopReason.MODEL_CALL_BUDGET: "generate",
    StopReason.CONTEXT_BUDGET: "generate",
    StopReason.TOOL_CALL_BUDGET: "execute",
}


class ReplayError(Exception):
    """An episode that cannot be replayed as asked; one line that names what is missing."""


class Divergence(BaseModel):
    """The first place where the replayed program did something else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: str
    byte: int | None
    """Offset in the UTF-8 of the text named by `where`; None where the difference is none of text."""
    recorded: str
    """An excerpt around the place."""
    replayed: str


class Replayed(BaseModel):
    """What a replay showed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    divergence: Divergence | None
    messages: int
    """Compared messages."""
    not_compared: int
    """Messages that a record of version 1 holds only as they were cut."""


class _Diverged(Exception):
    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.where)
        self.divergence = divergence


def given_task(record: EpisodeRecord, release: Release, given: Given) -> dict[str, Any]:
    """The dictionary that the program received. Raises `ReplayError` if it cannot be made again."""
    if given.release != release.digest:
        raise ReplayError(
            f"the episode ran on release {given.release}, and {release.name} is {release.digest}: "
            "name the right one with --release"
        )
    try:
        task = release.task(record.task_id)
    except (KeyError, ReleaseError):
        raise ReplayError(f"release {release.name} has no task {record.task_id}") from None
    inventory = release.inventory(given.libraries)
    made = program_task(task, given.budgets, given.guidance, inventory, user_turns=given.user_turns)
    if given.task and digest_json(made) != given.task:
        raise ReplayError(
            f"this version of rinr describes task {record.task_id} to programs otherwise than the one that "
            "made the record: use that one"
        )
    return made


async def replay(
    record: EpisodeRecord, harness: Harness, release: Release, given: Given, sandboxes: SandboxFactory
) -> Replayed:
    """Raises `ReplayError`, and `SandboxLost` when no sandbox can be had."""
    if harness.digest != record.harness:
        raise ReplayError(f"the episode ran the program {record.harness}, this one is {harness.digest}")
    plain = given_task(record, release, given)
    public = public_texts(release.task(record.task_id), release.inventory(given.libraries))
    player = _Player(record, Ledger(plain["prompt"], given.guidance, public))
    controller = await Controller.open(sandboxes)
    divergence = None
    try:
        await controller.start(harness.code, plain)
        await player.play(controller, max(60.0, given.budgets.seconds))
    except _Diverged as diverged:
        divergence = diverged.divergence
    finally:
        await controller.close()
    return Replayed(divergence=divergence, messages=player.messages, not_compared=player.not_compared)


def compare_tokens(record: EpisodeRecord, template: ChatTemplate) -> Divergence | None:
    """The first call whose ids are not those of its recorded messages and text (HOST-05, HOST-06)."""
    if record.tokenizer and record.tokenizer != template.digest:
        raise ReplayError(
            f"the episode was counted with tokenizer {record.tokenizer}, this one is {template.digest}"
        )
    for call in record.model_calls:
        where = f"model call {call.index}"
        if not call.completion.token_exact:
            continue
        if (ids := template.encode(as_chat(call.messages))) != call.prompt_ids:
            place = _first_difference(ids, call.prompt_ids)
            return Divergence(
                where=f"{where}, prompt token {place}",
                byte=None,
                recorded=str(call.prompt_ids[place : place + 8]),
                replayed=str(ids[place : place + 8]),
            )
        try:
            _compare(f"{where}, text", call.text, template.decode(call.completion.token_ids))
        except _Diverged as diverged:
            return diverged.divergence
    return None


def recorded_events(record: EpisodeRecord) -> list[tuple[_Kind, int]]:
    """What the program asked for, in order, each with its index among its kind."""
    places: list[tuple[tuple[int, int, int, int], tuple[_Kind, int]]] = []
    for call in record.model_calls:
        places.append(((call.index, -1, -1, 0), ("generate", call.index)))
    for tool in record.tool_calls:
        places.append(((tool.after_model_call, tool.index, 0, 0), ("execute", tool.index)))
    for number, submission in enumerate(record.submissions):
        after = submission.after_tool_call
        if after is None:
            earlier = (
                t.index for t in record.tool_calls if t.after_model_call <= submission.after_model_call
            )
            after = max(earlier, default=-1)
        places.append(((submission.after_model_call, after, 1, number), ("submit", number)))
    return [event for _, event in sorted(places)]


class _Player:
    """Compares what comes with what is recorded, and gives the recorded answers."""

    def __init__(self, record: EpisodeRecord, ledger: Ledger) -> None:
        self._record = record
        self._ledger = ledger
        self.messages = 0
        self.not_compared = 0

    async def play(self, controller: Controller, patience: float) -> None:
        events = recorded_events(self._record)
        for place, (kind, index) in enumerate(events):
            event = await self._next(controller, patience, f"{_NAMES[kind]} {index}")
            match event:
                case Generate(messages) if kind == "generate":
                    self._compare_call(self._record.model_calls[index], messages)
                case Execute(code) if kind == "execute":
                    _compare(
                        f"tool call {index}, code", self._record.tool_calls[index].code, clean_code(code)
                    )
                case Submit(text) if kind == "submit":
                    _compare(f"submission {index}", self._record.submissions[index].text, text)
                case _:
                    _differs(f"{_NAMES[kind]} {index}", _NAMES[kind], _describe(event))
            if place == len(events) - 1 and self._ends_with_last_event():
                return
            await self._answer(controller, kind, index)
        if not events and self._ends_with_last_event():
            return
        await self._compare_end(controller, patience)

    def _ends_with_last_event(self) -> bool:
        record = self._record
        if record.stop_reason in _ENDS_WITH_LAST_EVENT:
            return True
        # Its own reason gave way to the error; only a submission or the clock can have ended it so.
        return (
            record.error is not None
            and record.error.kind == "no_model_call"
            and record.refused is None
            and (bool(record.submissions) or StopReason.TIME_BUDGET in record.error.message)
        )

    async def _next(self, controller: Controller, patience: float, expected: str) -> Event:
        try:
            return await controller.next_event(patience)
        except TimeoutError:
            _differs(expected, expected, f"nothing within {patience:g} s")
        except HarnessError as error:
            _differs(expected, expected, f"{error.kind}: {_last_line(str(error))}")

    async def _answer(self, controller: Controller, kind: _Kind, index: int) -> None:
        record, ledger = self._record, self._ledger
        if kind == "generate":
            call = record.model_calls[index]
            ledger.add_completion(call.text)
            await controller.answer(call.text, call.left)
        elif kind == "execute":
            tool = record.tool_calls[index]
            ledger.add_observation(tool.stdout, tool.error)
            await controller.answer(
                {
                    "stdout": tool.stdout,
                    "error": tool.error,
                    **({"output_truncated": True} if tool.output_truncated else {}),
                },
                tool.left,
            )
        else:
            submission = record.submissions[index]
            if submission.reply is None:
                raise ReplayError(
                    f"the record is inconsistent: nothing follows submission {index}, it ends there"
                )
            ledger.replies.append(submission.reply)
            await controller.answer({"done": False, "reply": submission.reply}, submission.left)

    def _compare_call(self, call: ModelCall, raw: Any) -> None:
        where = f"model call {call.index}"
        try:
            sent = read_messages(raw, self._ledger)
        except HarnessError as error:
            _differs(where, f"{len(call.messages)} messages", f"{error.kind}: {error}")
        originals = {clipping.message_index: clipping for clipping in call.clippings}
        for number, (recorded, replayed) in enumerate(zip(call.messages, sent, strict=False)):
            place = f"{where}, message {number}"
            _compare(f"{place}, role and source", _mark(recorded), _mark(replayed))
            content = recorded.content
            if (clipping := originals.get(number)) is not None:
                if clipping.original is None:
                    self.not_compared += 1
                    continue
                content = clipping.original
            _compare(place, content, replayed.content)
            self.messages += 1
        if len(sent) != len(call.messages):
            _differs(where, f"{len(call.messages)} messages", f"{len(sent)} messages")

    async def _compare_end(self, controller: Controller, patience: float) -> None:
        """Nothing more is recorded: the program must end as it did."""
        record = self._record
        fault = record.error.kind if record.error is not None else None
        end = (
            f"{fault} by the program" if fault in ("crash", "protocol") else f"the end ({record.stop_reason})"
        )
        try:
            event = await controller.next_event(patience)
        except TimeoutError:
            _differs("the end", end, f"nothing within {patience:g} s")
        except HarnessError as error:
            if error.kind != fault:
                _differs("the end", end, f"{error.kind}: {_last_line(str(error))}")
            return
        if isinstance(event, Ended):
            ended = fault in (None, "no_model_call") and record.refused is None
            if not ended or record.stop_reason == StopReason.CONTEXT_BUDGET:
                _differs("the end", end, "run returned")
            return
        if not self._was_refused(event):
            _differs("the end", end, _describe(event))

    def _was_refused(self, event: Event) -> bool:
        """Whether this is the request that no call came of."""
        record = self._record
        kind, value = _request(event)
        if record.schema_version > 1:
            return record.refused == request_digest(kind, value)
        if record.error is not None:
            return record.error.kind in ("protocol", "forged_provenance", "no_model_call")
        return _MAY_HAVE_ASKED.get(record.stop_reason) == kind


def _request(event: Event) -> tuple[_Kind, Any]:
    match event:
        case Generate(messages):
            return "generate", messages
        case Execute(code):
            return "execute", code
        case Submit(text):
            return "submit", text
        case Ended():
            raise AssertionError("the end is no request")


def _describe(event: Event) -> str:
    if isinstance(event, Ended):
        return "run returned"
    kind, value = _request(event)
    return f"{_NAMES[kind]}: {str(value)[:_EXCERPT]}"


def _mark(message: Message) -> str:
    return f"{message.role}, {message.source}"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:200]


def _differs(where: str, recorded: str, replayed: str, byte: int | None = None) -> NoReturn:
    raise _Diverged(Divergence(where=where, byte=byte, recorded=recorded, replayed=replayed))


def _compare(where: str, recorded: str, replayed: str) -> None:
    if recorded == replayed:
        return
    one, other = recorded.encode(), replayed.encode()
    byte = _first_difference(one, other)
    _differs(where, _excerpt(one, byte), _excerpt(other, byte), byte)


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Index of the first byte that differs; the shorter length when one is the head of the other."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _excerpt(data: bytes, byte: int) -> str:
    start = max(0, byte - _BEFORE)
    text = data[start : start + _EXCERPT].decode(errors="replace")
    return f"{'...' if start else ''}{text}{'...' if start + _EXCERPT < len(data) else ''}"
