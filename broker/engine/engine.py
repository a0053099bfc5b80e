"""`EmbeddedEngine`: continuous batching of one model in one worker thread.

Requests join between decode steps. Each step is one forward pass over the next token of every running
sequence and the uncomputed tokens of new prompts (`plan`); on a GPU, steps without new prompts run in bursts
of fixed shape (`static`). The worker thread alone touches slots and caches;
other threads hand over requests under one condition variable. Must not know HTTP, templates or episodes.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from broker.engine.default_model import model_digest
from broker.engine.generation import Generation
from broker.engine.loading import Device, choose_device, load_model, replace_weights
from broker.engine.plan import NewPrompt, StepPlan, common_prefix, plan_step
from broker.engine.prefix import PrefixCache
from broker.engine.sampling import check_sampling, draw, uniform_stream
from broker.engine.slots import SlotAttention, SlotStore, power_of_two
from broker.engine.static import Burst, StaticDecode
from broker.errors import ModelUnavailable
from broker.model import Completion, Sampling

Decode = Literal["auto", "plain", "static"]
_SHARED_MINIMUM = 32
"""A shorter common prefix is not worth a product of its own."""
_KEPT_BYTES = 8 << 30
"""A larger slot buffer is given back while the engine is paused, and the graphs over it with it."""


class RequestRefused(ValueError):
    """The request can never be served as it is; the text says what to change."""


@dataclass
class EngineStats:
    """Counters since the start. Rates are over the time in which the engine computed."""

    requests: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_seconds: float = 0.0
    running: int = 0
    waiting: int = 0
    graphs: int = 0
    """Captured shapes of decode steps."""

    def summary(self) -> dict[str, float]:
        """The counters, the prompt tokens that were reused, and generated tokens per busy second."""
        rate = self.generated_tokens / self.busy_seconds if self.busy_seconds else 0.0
        reused = self.prompt_tokens - self.prompt_tokens_computed
        return {**asdict(self), "prompt_tokens_reused": reused, "tokens_per_second": rate}


class EmbeddedEngine:
    """Serves one model. Thread-safe; also a `TaskModel` for callers in the same process."""

    def __init__(
        self,
        model_dir: Path,
        *,
        device: Device = "auto",
        max_batch: int = 32,
        max_length: int = 2048,
        prefix_cache_bytes: int = 512 << 20,
        prefill_tokens: int = 8192,
        threads: int | None = None,
        share_prefixes: bool = True,
        exact: bool = True,
        decode: Decode = "auto",
    ) -> None:
        """Load and start. `max_length`: prompt plus completion; `prefill_tokens`: most new tokens a step,
        so that running sequences never wait long. `exact=False` computes in bfloat16 on a GPU, and lets a
        CPU that has bfloat16 products use them: prompts in half the time, log-probabilities less exact;
        never for RL rollouts, whose weights the trainer steps in place. `decode`: `static` runs the steps
        without new prompts in fixed shapes, on a GPU from captured graphs; `auto` does so on a GPU, and on
        a CPU takes every step as it comes. Raises `ModelUnavailable`.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("highest" if exact else "medium")
        self.device = choose_device(device)
        self.model, self.geometry = load_model(model_dir, self.device, exact=exact)
        """The module itself. A trainer in this process may change its parameters between pause and resume."""
        self.identity = model_digest(model_dir)
        self.max_length = min(max_length, self.geometry.positions)
        self._max_batch = max_batch
        self._prefill_tokens = prefill_tokens
        self._share = share_prefixes
        shape = (self.geometry.heads, self.geometry.head_dim)
        capacity = prefix_cache_bytes if share_prefixes else 0
        layers, like = self.geometry.layers, next(self.model.parameters())
        self._slots = SlotStore(layers, max_batch, *shape, like=like)
        self._prefixes = PrefixCache(layers, *shape, capacity_bytes=capacity, like=like)
        static = decode == "static" or (decode == "auto" and self.device.type == "cuda")
        self._static = StaticDecode(self.model, self._slots, slots=max_batch) if static else None
        self._running: list[Generation] = []
        self._waiting: deque[Generation] = deque()
        self._shared = 0
        self._no_mask = torch.zeros(1, 1, 1, 1, device=self.device)
        self._stats = EngineStats()
        self._pauses = 0
        self._closed = False
        self._changed = threading.Condition()
        self._worker = threading.Thread(target=self._work, name="embedded-engine", daemon=True)
        self._check_forward(model_dir)
        self._worker.start()

    def submit(self, prompt_ids: Sequence[int], sampling: Sampling) -> "Future[Completion]":
        """Queue one generation. Raises `RequestRefused` or `SamplingRefused` at once.

        Cancelling the future drops the request at the next step.
        """
        check_sampling(sampling)
        prompt = tuple(prompt_ids)
        if not prompt:
            raise RequestRefused("the prompt is empty: send at least one token id")
        if not all(0 <= token < self.geometry.vocabulary for token in prompt):
            raise RequestRefused(f"the prompt has ids outside 0 .. {self.geometry.vocabulary - 1}")
        if len(prompt) + sampling.max_tokens > self.max_length:
            raise RequestRefused(
                f"{len(prompt)} prompt tokens and max_tokens={sampling.max_tokens} exceed the engine's "
                f"{self.max_length}: shorten the prompt or start the engine with a larger max length"
            )
        sequence = Generation(prompt, sampling, Future(), uniform_stream(sampling.seed))
        with self._changed:
            if self._closed:
                raise ModelUnavailable("the embedded engine is closed")
            self._waiting.append(sequence)
            self._stats.requests += 1
            self._changed.notify_all()
        return sequence.future

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """`TaskModel` without HTTP. Raises `ModelUnavailable`."""
        try:
            return await asyncio.wrap_future(self.submit(prompt_ids, sampling))
        except ValueError as error:
            raise ModelUnavailable(str(error)) from error

    def pause(self) -> None:
        """Finish what is running, admit nothing more, and give caches back. Returns when idle."""
        with self._changed:
            self._pauses += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running or self._closed)
            self._empty_slots()
            self._prefixes.clear()

    def resume(self) -> None:
        """Serve again, with the weights as they are now. Everything cached was dropped by `pause`."""
        with self._changed:
            self.model.eval()
            self._pauses = max(0, self._pauses - 1)
            self._changed.notify_all()

    def load_weights(self, folder: Path) -> str:
        """Replace the weights by those of `folder`; returns the new identity. Queued requests wait."""
        identity = model_digest(folder)
        self.pause()
        try:
            replace_weights(self.model, folder)
            self.identity = identity
        finally:
            self.resume()
        return identity

    def stats(self) -> dict[str, float]:
        with self._changed:
            self._stats.running, self._stats.waiting = len(self._running), len(self._waiting)
            self._stats.graphs = self._static.graphs if self._static else 0
            return self._stats.summary()

    def close(self) -> None:
        """Stop the worker; what is unfinished fails with `ModelUnavailable`. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join()
        self._release_slots()
        self._prefixes.clear()

    # -- the worker thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._closed:
                    self._fail([*self._running, *self._waiting], "was closed")
                    return
                started = time.perf_counter()
                admitted = self._admit()
            try:
                self._step(admitted)
            except Exception as error:  # any failure of the pass loses its requests, never the engine
                with self._changed:
                    self._fail(self._running, f"failed: {type(error).__name__}: {error}")
                    self._release_slots()
                    self._prefixes.clear()
                    self._shared = 0
            with self._changed:
                self._stats.busy_seconds += time.perf_counter() - started
                self._changed.notify_all()

    def _empty_slots(self) -> None:
        """Forget keys and values. A buffer with graphs over it is kept, unless it is large."""
        if self._static and self._static.graphs and self._slots.nbytes <= _KEPT_BYTES:
            self._slots.forget()
        else:
            self._release_slots()

    def _release_slots(self) -> None:
        if self._static:
            self._static.drop()
        self._slots.release()

    def _has_work(self) -> bool:
        return self._closed or bool(self._running) or (bool(self._waiting) and not self._pauses)

    def _fail(self, sequences: list[Generation], what: str) -> None:
        for sequence in sequences:
            sequence.fail(ModelUnavailable(f"the embedded engine {what}"))
        self._running.clear()

    def _admit(self) -> int:
        """Move waiting requests to free slots, the tail of `_running`; returns how many."""
        budget, admitted = self._prefill_tokens, 0
        while self._waiting and not self._pauses and len(self._running) < self._max_batch:
            if admitted and len(self._waiting[0].prompt) > budget:
                break
            sequence = self._waiting.popleft()
            if not sequence.future.cancelled():
                budget -= len(sequence.prompt)
                self._running.append(sequence)
                admitted += 1
        return admitted

    @torch.inference_mode()
    def _step(self, admitted: int) -> None:
        """Every running sequence gets its next tokens, the last `admitted` ones their first."""
        if self._static and not admitted:
            self._burst(self._static)
        else:
            self._pass(admitted)
        finished = self._retire()
        if admitted or finished:
            self._shared = self._common_prefix()

    def _pass(self, admitted: int) -> None:
        """One pass over the last tokens and the new prompts."""
        old = len(self._running) - admitted
        self._reserve(1, old)
        prompts = [self._fill(slot) for slot in range(old, len(self._running))]
        running = [(sequence.generated[-1], sequence.stored) for sequence in self._running[:old]]
        plan = plan_step(running, prompts, share=self._share)
        logits = self._forward(plan, self._shared)
        uniforms = [sequence.next_uniform() for sequence in self._running]
        temperatures = [sequence.sampling.temperature for sequence in self._running]
        tokens, logprobs = draw(logits, temperatures, uniforms)
        for sequence, token, logprob in zip(self._running, tokens, logprobs, strict=True):
            sequence.extend([token], [logprob], self.geometry.stop_ids)
        for slot, prompt in enumerate(prompts, start=old):
            self._prefixes.insert(prompt.tokens, self._slots.read(slot, len(prompt.tokens)))
        self._count(prompts, len(plan.tokens) - old, len(self._running))

    def _burst(self, static: StaticDecode) -> None:
        """Some steps of fixed shape, as many as every sequence may still take."""
        running = self._running
        steps = min(static.burst, *(sequence.remaining for sequence in running))
        self._reserve(steps, len(running))
        burst = Burst(
            tokens=[sequence.generated[-1] for sequence in running],
            positions=[sequence.stored for sequence in running],
            temperatures=[sequence.sampling.temperature for sequence in running],
            uniforms=[[sequence.next_uniform() for sequence in running] for _ in range(steps)],
        )
        tokens, logprobs = static.run(burst)
        kept = 0
        for slot, sequence in enumerate(running):
            own = [step[slot] for step in tokens], [step[slot] for step in logprobs]
            kept += sequence.extend(*own, self.geometry.stop_ids)
        self._count([], 0, kept, steps)

    def _reserve(self, steps: int, keep: int) -> None:
        """Room for so many more positions of every sequence."""
        length = steps + max(sequence.stored for sequence in self._running)
        room = min(power_of_two(length), self.max_length) if self._static else 0
        self._slots.reserve(length, keep, room=room)

    def _fill(self, slot: int) -> NewPrompt:
        """Put what the prefix cache has of a new prompt into its slot."""
        prompt = self._running[slot].prompt
        prefix = self._prefixes.match(prompt[:-1])
        if prefix is None:
            return NewPrompt(slot, prompt, cached=0)
        self._slots.load(slot, prefix)
        return NewPrompt(slot, prompt, cached=prefix.shape[3])

    def _forward(self, plan: StepPlan, shared: int) -> torch.Tensor:
        """Logits [rows, vocabulary] of the planned rows."""

        def row(values: list[int]) -> torch.Tensor:
            return torch.tensor([values], device=self.device)

        return self.model(
            input_ids=row(plan.tokens),
            position_ids=row(plan.positions),
            # Four dimensions: taken as it is, so that transformers builds no mask; `slots` has its own.
            attention_mask=self._no_mask,
            use_cache=False,
            logits_to_keep=row(plan.logit_rows)[0],
            slots=SlotAttention(self._slots, plan, shared=shared),
        ).logits[0]

    def _count(self, prompts: list[NewPrompt], computed: int, generated: int, steps: int = 1) -> None:
        with self._changed:
            self._stats.steps += steps
            self._stats.prompt_tokens += sum(len(prompt.tokens) for prompt in prompts)
            self._stats.prompt_tokens_computed += computed
            self._stats.generated_tokens += generated

    def _retire(self) -> bool:
        """Resolve what is finished or cancelled; the last sequence moves into each slot that becomes free."""
        done = [
            slot for slot, sequence in enumerate(self._running) if sequence.is_done(self.geometry.stop_ids)
        ]
        for slot in reversed(done):
            sequence = self._running[slot]
            known = (*sequence.prompt, *sequence.generated[:-1])
            self._prefixes.insert(known, self._slots.read(slot, len(known)))
            last = len(self._running) - 1
            if slot != last:
                self._slots.move(last, slot, self._running[last].stored)
            with self._changed:
                self._running[slot] = self._running[last]
                self._running.pop()
            sequence.finish(self.geometry.stop_ids)
        return bool(done)

    def _common_prefix(self) -> int:
        """Leading tokens that all running prompts share, or 0 where reading them once does not pay.

        On a GPU it does not: there a step's time is the number of kernels (measured: 20 % slower).
        """
        if len(self._running) < 2 or not self._share or self.device.type != "cpu":
            return 0
        first = self._running[0].prompt
        common = min(common_prefix(first, sequence.prompt) for sequence in self._running[1:])
        return common if common >= _SHARED_MINIMUM else 0

    def _check_forward(self, folder: Path) -> None:
        """Run one token, so that a model of another kind is refused at the start."""
        plan = plan_step([], [NewPrompt(0, (0,), cached=0)])
        try:
            with torch.inference_mode():
                self._slots.reserve(1, 0)
                self._forward(plan, 0)
        except (NotImplementedError, TypeError, AttributeError, RuntimeError, IndexError) as error:
            raise ModelUnavailable(
                "the embedded engine serves full-attention models; "
                f"use inference=vllm for {folder.name} ({error})"
            ) from error
