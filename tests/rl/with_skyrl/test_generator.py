"""The real generator and broker on a scripted engine: whatever happens, SkyRL accepts the batch."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rl_jobs
import torch
from skyrl.train.generators.base import GeneratorInterface
from skyrl.train.generators.utils import prepare_generator_input
from skyrl.train.utils.trainer_utils import validate_generator_output

from broker.attempt import Lost
from broker.broker import Broker
from broker.record import GradedEpisode
from rl.contract import RlContract
from rl.errors import TrainingError
from rl.grpo import row_advantages
from rl.job_spec import Job
from rl.rollout import Rollout
from rl.skyrl.generator import BrokerGenerator
from rl.skyrl.model import SkyrlModel
from rl.skyrl.prompts import PromptRows
from rl.skyrl.rollout import Watch
from tests.fixtures.episodes import make_broker, template
from tests.fixtures.fake_sandbox import FakeFactory
from tests.rl.with_skyrl.bare import bare_trainer
from tests.rl.with_skyrl.fake_client import ScriptedClient, said

PROMPTS, ATTEMPTS = 2, 4
CONTRACT = RlContract(updates=2, prompts_per_batch=PROMPTS, attempts=ATTEMPTS)

# What an episode does hangs on what the engine says: see `script`.
PROGRAM = """
def run(task, api):
    said = api.generate([{"role": "user", "content": task["prompt"]}])
    if "crash" in said:
        raise RuntimeError("the program fell over")
    if "sleep" in said:
        import time
        time.sleep(30)
    while "more" in said:
        said = api.generate([{"role": "user", "content": task["prompt"]},
                             {"role": "assistant", "content": said},
                             {"role": "user", "content": "Go on.", "source": "harness"}])
    if "silent" not in said:
        api.submit("<answer>" + said + "</answer>")
"""
NO_CALL = "def run(task, api):\n    api.submit('<answer>A</answer>')\n"


@dataclass
class Bench:
    """A generator on a scripted client, and everything that was heard."""

    job: Job
    broker: Broker
    client: ScriptedClient
    generator: BrokerGenerator
    prompts: PromptRows
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    episodes: list[GradedEpisode] = field(default_factory=list)
    lost: list[tuple[Lost, bool]] = field(default_factory=list)

    def input(self, update: int = 1) -> dict[str, Any]:
        rows = [self.prompts[index] for index in range((update - 1) * PROMPTS, update * PROMPTS)]
        given, _ = prepare_generator_input(rows, ATTEMPTS, {}, "rinr", "train", update)
        return given

    async def run(self, update: int = 1) -> dict[str, Any]:
        """Generate, with SkyRL's own check of what comes back."""
        output = await self.generator.generate(self.input(update))
        validate_generator_output(PROMPTS * ATTEMPTS, output, step_wise=True)
        return output


@asynccontextmanager
async def bench(policy: Any = None, program: str = PROGRAM, **changes: Any) -> AsyncGenerator[Bench]:
    cycle = changes.pop("cycle", 1)
    job = rl_jobs.job(Path("/nowhere"), contract=CONTRACT, harness_code=program, cycle=cycle)
    client, model = ScriptedClient(policy), SkyrlModel([])
    broker = make_broker(model, changes.pop("sandboxes", None), limit=16, retries=0, **changes)
    heard: list[Any] = [[], [], {}]
    watch = Watch(episode=heard[0].append, lost=lambda lost, bug: heard[1].append((lost, bug)))
    generator = BrokerGenerator(job, broker, model, watch, heard[2].__setitem__)
    generator.attach(client)
    found = Bench(
        job, broker, client, generator, PromptRows(job, broker.release), heard[2], heard[0], heard[1]
    )
    try:
        yield found
    finally:
        await generator.close()


def script(*words: str) -> Any:
    """What the engine says to the first request of each session, by the attempt's number; later: `done`."""
    seen: dict[str, int] = {}

    def policy(request: dict[str, Any]) -> Any:
        (name,) = request["session_ids"]
        seen[name] = seen.get(name, 0) + 1
        text = words[int(name.rsplit("-", 1)[1]) % len(words)]
        kind, _, count = text.partition(" ")
        text = "done" if kind == "more" and seen[name] > int(count) else text
        return said(text, request["sampling_params"]["max_tokens"])

    return policy


def steps_of(output: dict[str, Any]) -> list[int]:
    """Calls of each trajectory, in order."""
    counts, open_ = [], 0
    for is_last in output["is_last_step"]:
        open_ += 1
        if is_last:
            counts.append(open_)
            open_ = 0
    return counts


@pytest.mark.spec("RL-01", "RL-05", "RL-09")
async def test_uneven_calls_are_one_row_each_under_skyrls_ids_and_every_token_gets_its_advantage() -> None:
    async with bench(script("done", "more 1", "more 2", "<answer>")) as found:
        output = await found.run()
        assert steps_of(output) == [1, 2, 3, 1] * PROMPTS
        assert [item.to_string() for item in output["trajectory_ids"] if item.repetition_id == 2] == (
            ["000000_2"] * 3 + ["000001_2"] * 3
        )
        trainer = bare_trainer(PROMPTS, ATTEMPTS)
        rows = found.rollouts[1].batch.rows
        # Rewards that tell the attempts apart, for the scripted engine is never right.
        output["rewards"] = [
            [0.0] * (len(ids) - 1) + [float(item.repetition_id == 1 and last)]
            for ids, item, last in zip(
                output["response_ids"], output["trajectory_ids"], output["is_last_step"], strict=True
            )
        ]
        data = trainer.convert_to_training_input(output, [t.instance_id for t in output["trajectory_ids"]])
        data["values"] = None
        advantages = trainer.compute_advantages_and_returns(data)["advantages"]
        for row, values, reward in zip(rows, advantages, output["trajectory_ids"], strict=True):
            tokens = values[-len(row.completion_ids) :]
            assert torch.all(tokens == tokens[0])
            assert (float(tokens[0]) > 1) == (reward.repetition_id == 1)
        assert all(value == 0 for value in row_advantages(rows))


TWICE = """
def run(task, api):
    said = api.generate([{"role": "user", "content": task["prompt"]}])
    api.generate([{"role": "user", "content": task["prompt"]},
                  {"role": "assistant", "content": said},
                  {"role": "user", "content": "Go on.", "source": "harness"}])
"""


def as_bytes(ids: Any) -> bytes:
    return np.asarray(ids, dtype="<u4").tobytes()


@pytest.mark.spec("RL-05", "HOST-06")
async def test_what_skyrl_trains_on_are_its_clients_ids_byte_for_byte() -> None:
    draw = random.Random(5)
    heard: dict[str, list[tuple[bytes, bytes, list[float]]]] = {}

    def babble(request: dict[str, Any]) -> Any:
        """Ids at random: hardly ever those that a tokenizer would choose for the same text."""
        ids = [*(draw.randrange(3, template().vocabulary) for _ in range(draw.randrange(1, 12)))]
        ids.append(template().end_ids[0])
        logprobs = [-draw.random() for _ in ids]
        (name,), (prompt,) = request["session_ids"], request["prompt_token_ids"]
        heard.setdefault(name, []).append((as_bytes(prompt), as_bytes(ids), logprobs))
        return {
            "responses": [""],
            "response_ids": [ids],
            "response_logprobs": [logprobs],
            "stop_reasons": ["stop"],
        }

    async with bench(babble, program=TWICE) as found:
        output = await found.run()
    names = [f"{item.instance_id}-{item.repetition_id}" for item in output["trajectory_ids"]]
    wanted = [heard[name][names[:index].count(name)] for index, name in enumerate(names)]
    assert len(wanted) == sum(map(len, heard.values())) == PROMPTS * ATTEMPTS * 2
    again = [
        as_bytes(template().encode_text(template().decode(ids, False))) for ids in output["response_ids"]
    ]
    # The test could fail: tokenising the texts again gives other ids.
    assert sum(one != spoken for one, (_, spoken, _) in zip(again, wanted, strict=True)) > len(wanted) / 2

    data = bare_trainer(PROMPTS, ATTEMPTS).convert_to_training_input(
        output, [item.instance_id for item in output["trajectory_ids"]]
    )
    for index, (prompt, spoken, logprobs) in enumerate(wanted):
        assert as_bytes(output["prompt_token_ids"][index]) == prompt
        assert as_bytes(output["response_ids"][index]) == spoken
        assert output["rollout_logprobs"][index] == logprobs
        # And as SkyRL's own tensors hold them: padded on the left, the response at the right end.
        whole = data["sequences"][index][data["attention_mask"][index].bool()]
        assert as_bytes(whole) == prompt + spoken
        assert data["rollout_logprobs"][index][-len(logprobs) :].tolist() == (
            torch.tensor(logprobs, dtype=torch.float32).tolist()
        )
        assert int(data["loss_mask"][index].sum()) == len(logprobs)


@pytest.mark.spec("RL-07")
async def test_an_episode_without_a_call_keeps_its_place_as_a_placeholder() -> None:
    program = f"{PROGRAM}\n\ntalk = run\n\ndef run(task, api):\n    "
    program += "if api.left['model_calls'] and task['prompt'] != FIRST:\n        talk(task, api)\n"
    async with bench(script("done")) as found:
        first = found.prompts.tasks[0].prompt
    async with bench(script("done"), program=f"FIRST = {first!r}\n{program}") as found:
        output = await found.run()
        assert steps_of(output) == [1] * 8
        assert output["response_ids"][:4] == [[0]] * 4
        assert output["loss_masks"][:4] == [[0]] * 4
        assert output["rollout_metrics"]["rinr/zero_call_episodes"] == 4
        assert output["rollout_metrics"]["rinr/silent_prompts"] == 1


@pytest.mark.spec("RL-04", "RL-07")
async def test_a_crash_and_an_episode_without_submission_are_outcomes_with_reward_0() -> None:
    async with bench(script("crash", "silent", "done", "more 1")) as found:
        output = await found.run()
        assert steps_of(output) == [1, 1, 1, 2] * PROMPTS
        assert sum(map(sum, output["rewards"])) == 0
        assert found.lost == []
        stops = {str(item.record.stop_reason) for item in found.episodes}
        assert stops == {"candidate_error", "no_submission", "first_answer"}


async def test_a_program_that_runs_out_of_time_keeps_its_calls() -> None:
    async with bench(script("sleep", "done"), seconds=1.0) as found:
        output = await found.run()
        assert steps_of(output) == [1] * 8
        stops = [str(item.record.stop_reason) for item in found.episodes]
        assert stops.count("time_budget") == 4


@pytest.mark.parametrize("what", ["engine", "bug"])
async def test_one_exception_masks_its_group_and_leaves_the_others_alone(what: str) -> None:
    def policy(request: dict[str, Any]) -> Any:
        if request["session_ids"] == ["000001-2"]:
            raise ConnectionResetError("engine gone")
        return said("done", request["sampling_params"]["max_tokens"])

    async with bench(policy if what == "engine" else None) as found:
        if what == "bug":
            run = found.broker.run

            async def broken(attempt: Any, *rest: Any) -> Any:
                if attempt.repetition == 2 and attempt.task.id == found.prompts.tasks[1].id:
                    raise ZeroDivisionError("a bug of ours")
                return await run(attempt, *rest)

            found.broker.run = broken  # type: ignore[method-assign]
        output = await found.run()
        assert steps_of(output) == [1] * 8
        assert [sum(mask) > 0 for mask in output["loss_masks"]] == [True] * 4 + [False] * 4
        assert output["response_ids"][6] == [0]
        ((lost, bug),) = found.lost
        assert (lost.attempt.repetition, bug) == (2, what == "bug")
        assert ("engine gone" if what == "engine" else "a bug of ours") in lost.error
        assert found.rollouts[1].batch.lost_prompts == (found.prompts.tasks[1].id,)


@pytest.mark.spec("RL-07")
async def test_a_sandbox_that_is_lost_masks_its_group_too() -> None:
    factory = FakeFactory()
    factory.failures = 1
    async with bench(script("done"), sandboxes=factory) as found:
        output = await found.run()
        assert len(found.lost) == 1
        masked = [sum(mask) == 0 for mask in output["loss_masks"]]
        assert masked in ([True] * 4 + [False] * 4, [False] * 4 + [True] * 4)


@pytest.mark.spec("RL-07")
async def test_only_an_empty_batch_leaves_as_an_exception_and_it_names_the_first_loss() -> None:
    def gone(_: Any) -> Any:
        raise ConnectionResetError("engine gone")

    async with bench(gone) as found:
        with pytest.raises(TrainingError, match=r"RL-07: no trainable token.*first loss: .*engine gone"):
            await found.run()
    async with bench(program=NO_CALL) as found:
        with pytest.raises(TrainingError, match="RL-07: no trainable token"):
            await found.run()


async def test_every_session_is_finished_once_and_the_engine_is_refused_afterwards() -> None:
    async with bench(script("more 1")) as found:
        await found.run()
        names = [f"{index:06d}-{number}" for index in range(PROMPTS) for number in range(ATTEMPTS)]
        assert sorted(found.client.finished) == names
        await found.run(update=2)
        assert len(set(found.client.finished)) == 16
        # A call that a program's late thread would make now.
        from broker.errors import ModelUnavailable
        from broker.model import Sampling

        with pytest.raises(ModelUnavailable, match="rollout is over"):
            await found.broker.model.complete((1,), Sampling(temperature=1.0, seed=0, max_tokens=4))  # type: ignore[union-attr]


@pytest.mark.spec("RL-01", "SCHED-05")
async def test_attempts_of_all_updates_and_cycles_are_seeded_apart() -> None:
    seeds: list[int] = []
    for cycle in (1, 2):
        async with bench(cycle=cycle) as found:
            await found.run()
            await found.run(update=2)
            seeds += [request["sampling_params"]["seed"] for request in found.client.requests]
    assert len(set(seeds)) == len(seeds) == 32


async def test_closing_ends_a_rollout_that_waits_and_refuses_the_next() -> None:
    async def never(_: Any) -> Any:
        await asyncio.sleep(60)

    factory = FakeFactory()
    async with bench(never, sandboxes=factory) as found:
        work = asyncio.ensure_future(found.generator.generate(found.input()))
        await asyncio.wait_for(found.client.asked.wait(), 10)
        await found.generator.close()
        with pytest.raises((asyncio.CancelledError, TrainingError)):
            await work
        assert found.client.open == 0
        assert factory.closed == len(factory.started) > 0
        with pytest.raises(TrainingError, match="stopped"):
            await found.generator.generate(found.input())


async def test_a_batch_in_another_order_or_with_an_attempt_missing_is_refused() -> None:
    async with bench() as found:
        for change in (
            lambda given: {name: list(reversed(given[name])) for name in ("env_extras", "trajectory_ids")},
            lambda given: {name: given[name][:-1] for name in ("env_extras", "trajectory_ids")},
        ):
            given = found.input()
            with pytest.raises(TrainingError, match="not every prompt with all its attempts"):
                await found.generator.generate({**given, **change(given)})


def test_the_generator_has_what_skyrls_interface_asks_for() -> None:
    wanted = set(GeneratorInterface.__abstractmethods__)
    assert wanted <= set(dir(BrokerGenerator))
