"""The episodes of one SkyRL step: every exception ends at its own episode, and becomes a lost attempt.

SkyRL aborts a whole step over one exception of its generator, so none but an empty batch leaves here
(RL-07). Must not know SkyRL.
"""

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.attempt import Attempt, Lost
from broker.broker import Broker
from broker.errors import OURS
from broker.record import GradedEpisode
from rl.contract import RlContract
from rl.rollout import Rollout, check_trained_on, make_rollout
from rl.skyrl.model import SkyrlModel, session

Result = GradedEpisode | Lost


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Who hears of what happens while episodes run. All are called in the broker's event loop."""

    episode: Callable[[GradedEpisode], None]
    lost: Callable[[Lost, bool], None]
    """An attempt without an episode, and whether that was no known failure of ours but a bug."""


async def collect(
    broker: Broker,
    model: SkyrlModel,
    attempts: Sequence[Attempt],
    names: Sequence[str],
    contract: RlContract,
    watch: Watch,
) -> Rollout:
    """Run the attempts, `names` being the sessions of their model calls, and make rows of them.

    Raises `TrainingError` for a task outside Train (RL-03) or an empty batch (RL-07), and nothing else.
    """
    check_trained_on(attempts)
    started = time.perf_counter()
    works = [
        asyncio.ensure_future(_one(broker, model, attempt, name, watch))
        for attempt, name in zip(attempts, names, strict=True)
    ]
    try:
        results: list[Result] = await asyncio.gather(*works)
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
    seconds = time.perf_counter() - started
    return make_rollout(results, attempts, contract, broker.budgets, seconds)


async def _one(broker: Broker, model: SkyrlModel, attempt: Attempt, name: str, watch: Watch) -> Result:
    """One episode and the end of its session; whatever goes wrong stays here."""
    try:
        with session(name):
            graded = await broker.run(attempt)
    except OURS as error:
        return _lost(attempt, error, watch, bug=False)
    except Exception as error:
        traceback.print_exception(error)
        return _lost(attempt, error, watch, bug=True)
    finally:
        await model.finish(name)
    watch.episode(graded)
    return graded


def _lost(attempt: Attempt, error: Exception, watch: Watch, *, bug: bool) -> Lost:
    lost = Lost(attempt, f"{type(error).__name__}: {error}")
    watch.lost(lost, bug)
    return lost
