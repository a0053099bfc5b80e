"""The algorithm: h0001 -> r0001 -> h0002 -> r0002 -> h0003 -> r0003 (SCHED-01, SCHED-02, SCHED-08).

Read it aloud. Each name below is one stage or one phase; how a stage is done stands in the room it calls.
"""

import asyncio

from prefect import flow

from catalog.store import Ref
from report.progress import RunProgress
from tasks.adaptation import best_of, revise, score_batch
from tasks.config import RunConfig, check_trainable
from tasks.finish import write_report
from tasks.inner import collect, designate, preflight, propose
from tasks.measure import evaluate
from tasks.outer import consume, holding, import_model, import_seed, publish, train, validate
from tasks.pass_at import sample
from tasks.probe import probe_auxiliary
from tasks.selection import select
from tasks.session import current, open_session
from tasks.trigger import hands_over


@flow(name="rinr", flow_run_name="{config.recipe_name} seed {config.seed}", validate_parameters=True)
async def rinr(config: RunConfig) -> str:
    """The schedule of the configured mode. Returns the path of the report."""
    check_trainable(config)
    with RunProgress() as progress:
        async with open_session(config, progress):
            await probe_auxiliary()
            model, harness = await import_model(), await import_seed()
            if config.mode == "cycle":
                await cycles(model, harness)
            elif config.mode == "model":
                await model_phases(model, harness)
            elif config.schedule.protocol == "adaptation":
                await adaptation(model, harness)
            else:
                await harness_phases(model, harness)
            return await write_report()


async def cycles(model: Ref, harness: Ref) -> None:
    """Three cycles of harness learning and model learning (SCHED-01, SCHED-02, SCHED-06)."""
    history: tuple[Ref, ...] = ()
    for cycle in range(1, current().config.schedule.cycles + 1):
        selected, history = await harness_phase(cycle, model, harness, history)
        if hands_over(cycle, harness, selected):
            model = await rl_phase(cycle, model, selected)
        harness = selected


async def harness_phases(model: Ref, harness: Ref) -> None:
    """Harness learning alone, the model stays what it is (SCHED-09)."""
    history: tuple[Ref, ...] = ()
    for cycle in range(1, current().config.schedule.cycles + 1):
        harness, history = await harness_phase(cycle, model, harness, history)


async def model_phases(model: Ref, harness: Ref) -> None:
    """Model learning alone, the program stays what it is; pass@k before and after (SCHED-09)."""
    before = await sample("pass_before", 0, model, harness)
    cycles = current().config.schedule.cycles
    for cycle in range(1, cycles + 1):
        model = await rl_phase(cycle, model, harness)
    await sample("pass_after", cycles, model, harness, before)


@flow(name="harness-phase", flow_run_name="h{cycle:04d}")
async def harness_phase(
    cycle: int, model: Ref, harness: Ref, history: tuple[Ref, ...]
) -> tuple[Ref, tuple[Ref, ...]]:
    """The inner recursion: the model is fixed, the program is searched (SCHED-04, SEL-07, EVID-04).

    Returns the selected harness, and the history of decisions that later proposals may see.
    """
    schedule = current().config.schedule
    designated = await designate(cycle, model, harness)
    await evaluate("phase_baseline_test", cycle, 0, model, harness)
    pending: tuple[Ref, ...] = ()
    for step in range(1, schedule.steps + 1):
        evidence = (*pending, await collect(cycle, step, model, harness))
        proposals = await propose(cycle, step, harness, evidence, history)
        finalists = await preflight(cycle, step, model, harness, proposals, evidence, designated)
        scores = await asyncio.gather(
            evaluate("step_val_parent", cycle, step, model, harness),
            *(
                evaluate("step_val_candidate", cycle, step, model, program, i)
                for i, program in finalists.programs()
            ),
        )
        noise = (
            await evaluate("step_val_again", cycle, step, model, harness) if schedule.aa_comparison else None
        )
        decision = await select(cycle, step, harness, finalists, scores, noise)
        harness, history = decision.selected, (*history, decision.record)
        pending = () if decision.adopted else evidence
    await evaluate("phase_end_test", cycle, schedule.steps, model, harness)
    return harness, history


@flow(name="rl-phase", flow_run_name="r{cycle:04d}")
async def rl_phase(cycle: int, model: Ref, harness: Ref) -> Ref:
    """The outer recursion: the program is fixed, the model learns (HAND-01..04, EXP-02).

    Returns the next model: an export that another process has loaded and evaluated.
    """
    await evaluate("rl_baseline_test", cycle, 0, model, harness)
    # First: a worker may claim the request in the next moment, on these very GPUs.
    await current().release_services()
    request = await publish(cycle, model, harness)
    if current().config.trainer.claim == "inline":
        async with holding(request):
            await validate(request, await train(request))
    return await consume(request)


@flow(name="adaptation", flow_run_name="adaptation")
async def adaptation(model: Ref, harness: Ref) -> Ref:
    """The paper's adaptation of a harness: one update a batch, then one look at Val (SCHED-10).

    Returns the best program on the adaptation set. Val chooses nothing: it compares that one with H0.
    """
    initial, designated = harness, await designate(1, model, harness)
    batches, programs = tuple[Ref, ...](), tuple[Ref, ...]()
    pending, history = tuple[Ref, ...](), tuple[Ref, ...]()
    for update in range(1, current().config.schedule.steps + 1):
        conversations = await collect(1, update, model, harness)
        batches = (*batches, await score_batch(1, update, model, harness, conversations))
        programs, evidence = (*programs, harness), (*pending, conversations)
        proposals = await propose(1, update, harness, evidence, history)
        finalists = await preflight(1, update, model, harness, proposals, evidence, designated)
        revision = await revise(1, update, harness, finalists)
        harness, history = revision.selected, (*history, revision.record)
        pending = () if revision.adopted else evidence
    best = await best_of(batches, programs)
    await evaluate("validation_initial", 1, 0, model, initial)
    await evaluate("validation_selected", 1, 0, model, best)
    return best
