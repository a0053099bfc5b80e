"""SkyRL's experiment and trainer with everything that needs a GPU in this process: engine, policy, dispatch.

What Ray workers do is done here on one module: the engine is the embedded one, the loss is SkyRL's own. The
export has the faults of SkyRL's: no chat template, float32, a tied head once more.
"""

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from skyrl.backends.skyrl_train.distributed.dispatch import WorkerOutput
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from transformers import AutoModelForCausalLM

from broker.engine.engine import EmbeddedEngine
from broker.model import Sampling
from rl.skyrl.experiment import Experiment, Parts


class InProcessClient:
    """The parts of `RemoteInferenceClient` that trainer and generator use, on the embedded engine."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.weight_version = 0
        self.asleep = False
        self.requests: list[dict[str, Any]] = []
        self.finished: list[str] = []

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        assert not self.asleep, "a request on a sleeping engine crashes it"
        self.requests.append(input_batch)
        parameters = input_batch["sampling_params"]
        # vLLM by itself knows the tokenizer's one end of a turn only.
        assert set(parameters["stop_token_ids"]) == set(self.engine.geometry.stop_ids)
        (ids,) = input_batch["prompt_token_ids"]
        wanted = Sampling(
            temperature=parameters["temperature"],
            seed=parameters["seed"],
            max_tokens=parameters["max_tokens"],
        )
        said = await asyncio.wrap_future(self.engine.submit(ids, wanted))
        return {
            "responses": [""],
            "response_ids": [list(said.token_ids)],
            "response_logprobs": [list(said.logprobs)],
            "stop_reasons": [said.finish_reason],
        }

    async def finish_session(self, session_id: str) -> None:
        self.finished.append(session_id)

    async def sleep(self, level: int = 2, tags: Any = None) -> None:
        self.asleep = True

    def increment_weight_version(self) -> None:
        self.weight_version += 1


class InProcessDispatch:
    """`WorkerDispatch` of one policy worker that is this process."""

    def __init__(self, cfg: Any, client: InProcessClient) -> None:
        self.cfg, self.client = cfg, client
        self.base = Path(cfg.trainer.policy.model.path)
        self.model = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32).eval()
        settings = cfg.trainer.policy.optimizer_config
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        self.batches: list[Any] = []

    def get_lcm_dp_size(self) -> int:
        return 1

    def init_weight_sync_state(self, client: Any) -> None: ...

    def empty_cache(self, model: str | None = None) -> None: ...

    def finalize_pending_saves(self, model: str) -> None: ...

    def get_timing_metrics(self) -> dict[str, float]:
        return {}

    async def save_weights_for_sampler(self, model_id: str | None = None) -> None:
        engine = self.client.engine
        engine.pause()
        with torch.no_grad():
            live = dict(engine.model.named_parameters())
            for name, value in self.model.named_parameters():
                live[name].copy_(value)
        engine.resume()
        self.client.asleep = False
        self.client.increment_weight_version()

    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> list[Any]:
        return [data[start:end] for start, end in boundaries]

    def forward_from_staged(self, model: str, chunk: Any) -> WorkerOutput:
        with torch.no_grad():
            logprobs = self._logprobs(chunk)
        return WorkerOutput(loss_fn_outputs=[{"logprobs": row.tolist()} for row in logprobs])

    forward = forward_from_staged

    def forward_backward_from_staged(self, model: str, chunk: Any) -> WorkerOutput:
        self.batches.append(chunk)
        loss_of = PolicyLossRegistry.get(self.cfg.trainer.algorithm.policy_loss_type)
        size = self.cfg.trainer.micro_train_batch_size_per_gpu
        losses, clips, entropies = [], [], []
        for start in range(0, len(chunk["sequences"]), size):
            part = chunk[start : start + size]
            loss, metrics = loss_of(
                self._logprobs(part),
                part["action_log_probs"],
                part["advantages"],
                config=self.cfg.trainer.algorithm,
                loss_mask=part["loss_mask"],
                rollout_logprobs=part["rollout_logprobs"],
            )
            loss.backward()
            losses.append(float(loss.detach()))
            clips.append(metrics["clip_ratio"])
            entropies.append(0.0)
        return WorkerOutput(
            metrics={
                "policy_loss": sum(losses),
                "final_loss": sum(losses),
                "loss_metrics/clip_ratio": sum(clips) / len(clips),
                "policy_entropy": sum(entropies) / len(entropies),
            }
        )

    def optim_step(self, model: str) -> float:
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.cfg.trainer.policy.optimizer_config.max_grad_norm
        )
        self.optimiser.step()
        self.optimiser.zero_grad()
        return float(norm)

    def save_hf_model(self, model: str, export_dir: str, tokenizer: Any) -> None:
        folder = Path(export_dir)
        self.model.save_pretrained(folder)
        weights = load_file(folder / "model.safetensors")
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_bytes())
        config["architectures"] = ["FSDP" + config["architectures"][0]]
        (folder / "config.json").write_text(json.dumps(config))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(self.base / name, folder / name)

    def _logprobs(self, data: Any) -> torch.Tensor:
        """[rows, response window]; the window is the right end of left-padded sequences."""
        ids, mask = data["sequences"], data["attention_mask"]
        count = int(data.metadata["response_length"])
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
        logits = self.model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        scores = logits[:, -count - 1 : -1].log_softmax(-1)
        return scores.gather(-1, ids[:, -count:, None])[..., 0]


class InProcessExperiment(Experiment):
    """No Ray, no GPU; everything else is what runs on a cluster."""

    dispatch = InProcessDispatch

    @classmethod
    def open(cls, config: Any, parts: Parts) -> "InProcessExperiment":
        parts.on_stage("ray", 0.0)
        return cls(config, parts)

    def get_colocate_pg(self, *_: Any) -> None:
        return None

    def get_inference_client(self) -> InProcessClient:
        started = time.perf_counter()
        self.engine = EmbeddedEngine(
            Path(self.cfg.trainer.policy.model.path),
            device="cpu",
            threads=1,
            max_length=self.cfg.generator.max_input_length,
        )
        self.parts.on_stage("engines", time.perf_counter() - started)
        return InProcessClient(self.engine)

    def _setup_trainer(self) -> Any:
        client = self.get_inference_client()
        trainer = self.get_trainer(
            cfg=self.cfg,
            tracker=self.get_tracker(),
            tokenizer=self.tokenizer,
            train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset,
            inference_engine_client=client,
            generator=self.get_generator(self.cfg, self.tokenizer, client),
            colocate_pg=self.colocate_pg,
        )
        trainer.dispatch = self.dispatch(self.cfg, client)
        self.trainer = trainer
        return trainer

    def close(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()


class BreakingDispatch(InProcessDispatch):
    def optim_step(self, model: str) -> float:
        if len(self.batches) == 2:
            raise RuntimeError("CUDA error: the second update fell over")
        return super().optim_step(model)


class BreakingExperiment(InProcessExperiment):
    """A worker dies in the second update."""

    dispatch = BreakingDispatch


class NotFiniteDispatch(InProcessDispatch):
    """From the second update on, one gradient is NaN; the step is skipped as SkyRL's strategy skips it."""

    def optim_step(self, model: str) -> float:
        if len(self.batches) > 1:
            first = next(self.model.parameters())
            assert first.grad is not None
            first.grad.view(-1)[0] = torch.nan
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimiser.zero_grad()
            return float(norm)
        return super().optim_step(model)


class NotFiniteExperiment(InProcessExperiment):
    """A gradient that is not finite in every update but the first."""

    dispatch = NotFiniteDispatch


class StuckDispatch(InProcessDispatch):
    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> list[Any]:
        self.stuck()
        time.sleep(600)
        return []

    def stuck(self) -> None: ...


class StuckExperiment(InProcessExperiment):
    """SkyRL's thread blocks for ever in the first update, as in a wait for Ray."""

    dispatch = StuckDispatch

    def _setup_trainer(self) -> Any:
        trainer = super()._setup_trainer()
        trainer.dispatch.stuck = lambda: self.parts.on_stage("stuck", 0.0)
        return trainer


class OnRay(StuckExperiment):
    """Stuck too, with a Ray of its own and an actor that would run for ever."""

    @classmethod
    def open(cls, config: Any, parts: Parts) -> "OnRay":
        import ray

        class Busy:
            def work(self) -> None:
                time.sleep(600)

        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        ray.remote(Busy).remote().work.remote()
        parts.on_stage("ray", 0.0)
        return cls(config, parts)
