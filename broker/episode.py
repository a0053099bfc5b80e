"""One attempt of one harness on one task, under the host's control.

The program asks, the host decides: it verifies sources, clips, counts, calls the model, runs tools,
grades the first submission and writes the record. What the program does wrong or uses up becomes the
record's stop reason; faults of ours (`errors.OURS`) leave as exceptions, for nothing may be concluded then.
Must not know how harnesses evolve or models learn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from broker.attempt import Attempt, Reply, Researcher, call_seed
from broker.checking import STEPS_UNFINISHED, Checking, NextStep
from broker.clipping import clip_observation
from broker.clock import EpisodeClock, current_clock, not_charged
from broker.controller import Controller, Ended, Execute, Generate, Submit
from broker.errors import BudgetExhausted, HarnessError, ModelUnavailable, PromptRefused
from broker.history import Prompt, as_chat, build_prompt
from broker.messages import Ledger, read_messages
from broker.model import ChatTaskModel, Completion, Sampling
from broker.progress import Progress
from broker.record import (
    EpisodeRecord,
    GradedEpisode,
    Left,
    Message,
    ModelCall,
    ProgramError,
    StopReason,
    Submission,
    ToolCall,
    request_digest,
)
from broker.services import Services
from broker.surroundings import prepare_code
from broker.tools import ExecutionSession, ToolResult, clean_code
from verifier.task import NOT_SUBMITTED, Verdict

_MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
_MAX_TRACEBACK: Final = 4_000
_OVERDUE_SECONDS: Final = 1800.0
"""How long past the episode clock a model call may still end; a client's own time-out comes first."""
_LONG_TEXT: Final = 50_000
"""Characters from which text is worked on in a thread, so that one episode never holds up its siblings."""
_Value = TypeVar("_Value")

NO_MODEL_CALL: Final = Verdict(
    format_valid=False, correct=False, answer=None, reason="the program never called the model"
)
"""Whatever such a program submits is not the task model's answer (RL-07, SEL-08)."""


async def _aside(characters: int, work: Callable[[], _Value]) -> _Value:
    """Do the work here, or in a thread when the text is long."""
    return work() if characters < _LONG_TEXT else await asyncio.to_thread(work)


async def _close(controller: Controller | None, tools: ExecutionSession) -> None:
    """Destroy both sandboxes, to the end even when the episode is cancelled meanwhile."""
    closing = asyncio.gather(tools.close(), *(() if controller is None else (controller.close(),)))
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await closing
        raise


class Episode:
    """Runs once. `researcher` is needed exactly when the mode is interaction and replies are allowed."""

    def __init__(self, services: Services, attempt: Attempt, researcher: Researcher | None = None) -> None:
        self._services = services
        self._attempt = attempt
        self._researcher = researcher
        self._turns = services.budgets.user_turns if attempt.mode == "interaction" else 0
        if self._turns and researcher is None:
            raise ValueError(
                "an interaction with replies needs a researcher; use mode evaluation without one"
            )
        self._clock = EpisodeClock(services.budgets.seconds)
        self._handed = services.handed(attempt.task, self._turns)
        self._ledger = Ledger(attempt.task.prompt, services.guidance, self._handed.public)
        self._progress = Progress()
        self._checking = Checking(services.grader, services.outside, attempt.task)

    async def run(self) -> GradedEpisode:
        """Raises one of `errors.OURS`; whatever the program did is in the record."""
        services, task = self._services, self._attempt.task
        token = current_clock.set(self._clock)
        tools = ExecutionSession(
            services.sandboxes,
            lake=services.release.lake,
            assets=services.release.assets(task.id),
            prepare=prepare_code(task),
        )
        controller: Controller | None = None
        try:
            if "api.execute" in self._attempt.harness.code and services.budgets.tool_calls:
                tools.prestart()
            controller = await Controller.open(services.sandboxes)
            stop, error = await self._serve(controller, tools)
        finally:
            current_clock.reset(token)
            await _close(controller, tools)
        return self._grade(stop, error)

    async def _serve(
        self, controller: Controller, tools: ExecutionSession
    ) -> tuple[StopReason, ProgramError | None]:
        """Serve the program until the episode ends; why it ended, and the program's own fault if any."""
        try:
            await controller.start(self._attempt.harness.code, self._handed.task)
            self._clock.start()
            while True:
                match await self._next_event(controller):
                    case Generate(messages):
                        self._progress.request = ("generate", messages)
                        text = await self._generate(messages)
                        await controller.answer(text, self._progress.model_calls[-1].left)
                    case Execute(code):
                        self._progress.request = ("execute", code)
                        observation = await self._execute(code, tools)
                        await controller.answer(observation, self._progress.tool_calls[-1].left)
                    case Submit(text):
                        self._progress.request = ("submit", text)
                        if (stop := await self._submit(text, tools)) is not None:
                            return stop, None
                        reply = {"done": False, "reply": self._ledger.replies[-1]}
                        await controller.answer(reply, self._progress.submissions[-1].left)
                    case Ended():
                        return self._ended(), None
        except BudgetExhausted as exhausted:
            return StopReason(exhausted.reason), None
        except HarnessError as error:
            kind: Any = error.kind
            return StopReason.CANDIDATE_ERROR, ProgramError(kind=kind, message=str(error)[-_MAX_TRACEBACK:])

    async def _next_event(self, controller: Controller) -> Generate | Execute | Submit | Ended:
        try:
            return await controller.next_event(max(0.0, self._clock.remaining))
        except TimeoutError:
            raise BudgetExhausted(StopReason.TIME_BUDGET) from None

    async def _answered(self, work: Awaitable[_Value]) -> _Value:
        """Await a model call to its end, past the clock too: a slow model answers then, a dead one fails."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            nonlocal timer
            patience = self._clock.remaining + _OVERDUE_SECONDS
            if patience <= 0:
                limit.reschedule(loop.time())
            else:
                timer = loop.call_later(max(0.01, patience), look)

        timer: asyncio.TimerHandle | None = None
        limit = asyncio.timeout(None)
        try:
            async with limit:
                look()
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise ModelUnavailable(
                f"the task model gave no answer for {_OVERDUE_SECONDS:.0f} s after the episode clock ran out"
            ) from None
        finally:
            if timer is not None:
                timer.cancel()

    async def _generate(self, raw: Any) -> str:
        services, progress = self._services, self._progress
        budgets = services.budgets
        if len(progress.model_calls) >= budgets.model_calls:
            raise BudgetExhausted(StopReason.MODEL_CALL_BUDGET)
        read = read_messages(raw, self._ledger)
        size = sum(len(message.content) for message in read)
        with not_charged():  # the host's own work, and a queue of it when many prompts are long
            messages, clippings, prompt_ids = await _aside(size, lambda: self._prompt(read))
        sampling = Sampling(
            temperature=self._attempt.temperature,
            seed=call_seed(self._attempt.seed, len(progress.model_calls)),
            max_tokens=budgets.completion_tokens,
        )
        asked = self._clock.elapsed
        completion = await self._answered(self._ask(messages, prompt_ids, sampling))
        exact = completion.token_exact
        text = (
            completion.text if completion.text is not None else services.template.decode(completion.token_ids)
        )
        progress.model_calls.append(
            ModelCall(
                index=len(progress.model_calls),
                messages=messages,
                clippings=clippings,
                prompt_ids=prompt_ids if exact else (),
                prompt_tokens=None if exact else len(prompt_ids),
                completion=completion,
                text=text,
                sampling=sampling,
                seconds=max(0.0, self._clock.elapsed - asked),
                left=self._left(model_calls=1, prompt_tokens=len(prompt_ids)),
            )
        )
        progress.request = None
        # An endpoint's own count may differ; the declared tokenizer's is the one that holds (HOST-11).
        too_long = not exact and services.template.count(text) > budgets.completion_tokens
        if completion.finish_reason == "length" or too_long:
            raise BudgetExhausted(StopReason.OUTPUT_TRUNCATED)
        if completion.finish_reason == "content_filter":
            raise BudgetExhausted(StopReason.CONTENT_FILTERED)
        if self._clock.remaining <= 0:
            raise BudgetExhausted(StopReason.TIME_BUDGET)
        self._ledger.add_completion(text)
        return text

    async def _ask(
        self, messages: Sequence[Message], prompt_ids: tuple[int, ...], sampling: Sampling
    ) -> Completion:
        model = self._services.model
        if not isinstance(model, ChatTaskModel):
            return await model.complete(prompt_ids, sampling)
        try:
            return await model.reply(as_chat(messages), sampling, len(prompt_ids))
        except PromptRefused as error:
            raise HarnessError("protocol", str(error)) from error

    def _prompt(self, read: tuple[Message, ...]) -> Prompt:
        """What the model will see of these messages; refuses what does not fit."""
        services, budgets = self._services, self._services.budgets
        self._count_bytes(sum(len(message.content.encode()) for message in read))
        try:
            prompt = build_prompt(read, self._ledger.tool_text, budgets, services.template)
        except ValueError as error:
            raise HarnessError("protocol", str(error)) from error
        if len(prompt.ids) + budgets.completion_tokens > budgets.context_tokens:
            self._progress.notes["refused_prompt_tokens"] = len(prompt.ids)
            raise BudgetExhausted(StopReason.CONTEXT_BUDGET)
        return prompt

    def _left(self, *, model_calls: int = 0, tool_calls: int = 0, prompt_tokens: int | None = None) -> Left:
        """What is left once the given calls are counted too."""
        budgets, progress = self._services.budgets, self._progress
        if prompt_tokens is not None:
            progress.prompt_tokens = prompt_tokens
        room = budgets.context_tokens - budgets.completion_tokens - progress.prompt_tokens
        return Left(
            model_calls=budgets.model_calls - len(progress.model_calls) - model_calls,
            tool_calls=budgets.tool_calls - len(progress.tool_calls) - tool_calls,
            user_turns=self._turns_left,
            context_tokens=room,
            seconds=round(max(0.0, self._clock.remaining), 3),
        )

    def _count_bytes(self, size: int) -> None:
        self._progress.record_bytes += size
        if self._progress.record_bytes > _MAX_RECORD_BYTES:
            raise HarnessError("protocol", f"the episode's record exceeds {_MAX_RECORD_BYTES} bytes")

    async def _execute(self, code: str, tools: ExecutionSession) -> dict[str, Any]:
        budgets, progress = self._services.budgets, self._progress
        if len(progress.tool_calls) >= budgets.tool_calls:
            raise BudgetExhausted(StopReason.TOOL_CALL_BUDGET)
        self._count_bytes(len(code.encode("utf-8", "surrogatepass")))
        code = clean_code(code)
        asked = self._clock.elapsed
        seconds = max(0.01, min(budgets.tool_seconds, self._clock.remaining))
        result = await tools.execute(code, seconds)
        limit, template = budgets.tool_response_tokens, self._services.template
        with not_charged():
            stdout, error, clipped = await _aside(
                len(result.stdout) + len(result.error),
                lambda: clip_observation(result.stdout, result.error, limit, template),
            )
        self._ledger.add_observation(stdout, error)
        truncated = clipped or result.output_truncated
        progress.tool_calls.append(
            ToolCall(
                index=len(progress.tool_calls),
                after_model_call=progress.last_model_call,
                code=code,
                stdout=stdout,
                error=error,
                output_truncated=truncated,
                seconds=max(0.0, self._clock.elapsed - asked),
                left=self._left(tool_calls=1),
            )
        )
        progress.request = None
        self._check_tool_end(result, seconds)
        return {"stdout": stdout, "error": error, **({"output_truncated": True} if truncated else {})}

    def _check_tool_end(self, result: ToolResult, seconds: float) -> None:
        if result.out_of_memory:
            raise BudgetExhausted(StopReason.OUT_OF_MEMORY)
        if self._clock.remaining <= 0 or (result.timed_out and seconds < self._services.budgets.tool_seconds):
            raise BudgetExhausted(StopReason.TIME_BUDGET)
        if result.timed_out:
            raise BudgetExhausted(StopReason.TOOL_TIMEOUT)

    async def _submit(self, text: str, tools: ExecutionSession) -> StopReason | None:
        """Record a submission; why the episode ends with it, or None if a reply was given."""
        progress, task = self._progress, self._attempt.task
        self._count_bytes(len(text.encode("utf-8", "surrogatepass")))
        with not_charged():
            found = await self._checking.submit(text, tools)
        submission = Submission(
            text=text,
            after_model_call=progress.last_model_call,
            after_tool_call=len(progress.tool_calls) - 1,
        )
        progress.submissions.append(submission)
        progress.request = None
        if isinstance(found, NextStep):
            progress.steps += 1
            return self._answer(found.prompt)
        progress.verdicts.append(found)
        if self._researcher is None or self._turns_left <= 0:
            return StopReason.FIRST_ANSWER
        with not_charged():
            so_far = self._record(StopReason.FIRST_ANSWER, None)
            reply = await self._researcher.reply(task, so_far, text, found)
        self._note_reply(reply)
        if reply.accepted:
            return StopReason.ACCEPTED
        if reply.text is None:
            return StopReason.FIRST_ANSWER
        return self._answer(reply.text)

    def _answer(self, text: str) -> None:
        """The program's latest submission is answered with this, and the episode goes on."""
        self._ledger.replies.append(text)
        submissions = self._progress.submissions
        submissions[-1] = submissions[-1].model_copy(update={"reply": text, "left": self._left()})

    @property
    def _turns_left(self) -> int:
        """Of the researcher; the prompt of a next step is none of them."""
        return self._turns - (len(self._ledger.replies) - self._progress.steps)

    def _note_reply(self, reply: Reply) -> None:
        number = len(self._progress.submissions) - 1
        self._progress.replies.append({"submission": number, **reply.model_dump(mode="json")})

    def _ended(self) -> StopReason:
        """Why a program that simply returned did not (or not again) submit."""
        progress, budgets = self._progress, self._services.budgets
        if progress.submissions:
            return StopReason.PROGRAM_ENDED
        if budgets.tool_calls and len(progress.tool_calls) >= budgets.tool_calls:
            return StopReason.TOOL_CALL_BUDGET
        if len(progress.model_calls) >= budgets.model_calls:
            return StopReason.MODEL_CALL_BUDGET
        return StopReason.NO_SUBMISSION

    def _grade(self, stop: StopReason, error: ProgramError | None) -> GradedEpisode:
        progress = self._progress
        unfinished = STEPS_UNFINISHED if progress.steps else NOT_SUBMITTED
        verdict, *later = progress.verdicts or [unfinished]
        if not progress.model_calls:
            verdict, later = NO_MODEL_CALL, []
            error = error or ProgramError(
                kind="no_model_call", message=f"the episode ended ({stop}) without any model call"
            )
            stop = StopReason.CANDIDATE_ERROR
        repaired = not verdict.correct and any(other.correct for other in later)
        return GradedEpisode(
            record=self._record(stop, error),
            verdict=verdict,
            repaired=repaired,
            outside=tuple(self._checking.answers),
        )

    def _record(self, stop: StopReason, error: ProgramError | None) -> EpisodeRecord:
        progress, attempt = self._progress, self._attempt
        notes = {**progress.notes, "sandbox": self._services.sandboxes.kind}
        if progress.replies:
            notes["replies"] = list(progress.replies)
        return EpisodeRecord(
            task_id=attempt.task.id,
            harness=attempt.harness.digest,
            mode=attempt.mode,
            repetition=attempt.repetition,
            model_calls=tuple(progress.model_calls),
            tool_calls=tuple(progress.tool_calls),
            submissions=tuple(progress.submissions),
            stop_reason=stop,
            error=error,
            token_exact=not isinstance(self._services.model, ChatTaskModel),
            tokenizer=self._services.template.digest,
            seconds=self._clock.elapsed,
            queue_seconds=self._clock.queued,
            notes=notes,
            refused=None if progress.request is None else request_digest(*progress.request),
            given=self._handed.given,
        )
