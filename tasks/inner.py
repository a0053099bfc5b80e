"""Stages of the inner recursion up to Val: designate, collect, propose, preflight.

Each takes references, calls the harness lab, and leaves a record. What goes from stage to stage about Train
is public by type; verdicts stay in the private episode blobs (EVID-02). Must not know how programs improve.
"""

import asyncio
from typing import Any, Final

from prefect import task

from broker.guidance import program_task
from broker.harness import Harness
from catalog.digest import digest_json
from catalog.store import Ref
from harness_lab.collect import collect as collect_interactions
from harness_lab.collect import first_answers
from harness_lab.dryrun import dry_run
from harness_lab.evidence import EvidenceBundle, Interaction, bundle
from harness_lab.fallbacks import fallbacks_of
from harness_lab.gates import IDENTITY as GATES
from harness_lab.gates import Gate, Gates
from harness_lab.history import HistoryEntry
from harness_lab.improver.base import Proposal, ProposalContext, Skip, propose_all
from harness_lab.preflight import Designated
from harness_lab.preflight import designate as designate_tasks
from harness_lab.schedule import cursor_at, draw, train_order
from harness_lab.words import IDENTITY as WORDS
from harness_lab.words import HeldOut, clean_proposals, texts_in
from tasks.measure import RETRIES, put_episodes
from tasks.session import Session, current
from tasks.stage import StageKey, run_stage
from tasks.values import Finalist, Finalists
from verifier.task import Task

VERSION: Final = 2
_DRY_TASKS, _MORE_DRY_TASKS = 2, 30
"""Train tasks of different families that the dry run shows to parent and candidate, and those of other kinds
that it shows as well where the first show no change."""


@task(name="designate", task_run_name="designate preflight h{cycle:04d}", **RETRIES)
async def designate(cycle: int, model: Ref, harness: Ref) -> Ref:
    """Find the phase's preflight tasks by measuring the inherited harness (SCHED-04, SEL-01)."""
    session = current()

    async def body() -> Ref:
        broker = await session.broker(model)
        tasks = _train_tasks(session, 0, session.config.schedule.preflight_tasks)
        with session.progress.stage("preflight of the inherited program", len(tasks), "episodes") as bar:
            found = await designate_tasks(broker, session.harness(harness), tasks, session.config.seed)
            bar.advance(len(tasks))
        return session.store.put_record("designated", 1, found.model_dump(mode="json"))

    inputs = {"model": model.digest, "harness": harness.digest}
    return await _stage(session, "designate", cycle, 0, inputs, body)


@task(name="collect", task_run_name="collect interactions, step {step}", **RETRIES)
async def collect(cycle: int, step: int, model: Ref, harness: Ref) -> Ref:
    """Run the step's Train interactions with feedback; the record holds their public half (FB-01)."""
    session = current()
    schedule = session.config.schedule

    async def body() -> Ref:
        broker = await session.broker(model)
        cursor = cursor_at(cycle, step, steps=schedule.steps, interactions=schedule.interactions)
        tasks = _train_tasks(session, cursor, schedule.interactions)
        with session.progress.stage("Train interactions", len(tasks), "episodes") as bar:
            found = await collect_interactions(
                broker, session.harness(harness), tasks, session.auxiliary, session.config.seed, bar.episode
            )
        session.progress.note(f"step {step}: {first_answers(found.graded)}")
        private = put_episodes(session.store, list(found.graded))
        session.catalog.record_artifact(private, "episodes", f"collect {session.run_id} h{cycle:04d}/{step}")
        record = {
            "interactions": [item.model_dump(mode="json") for item in found.interactions],
            "lost": [lost.error for lost in found.lost],
            "cursor": cursor,
            "exchanges": session.keep_exchanges(
                f"collect {session.run_id} h{cycle:04d}/{step}", fallbacks_of(found.interactions)
            ),
        }
        return session.store.put_record("interactions", 1, record)

    inputs = {"model": model.digest, "harness": harness.digest, "words": digest_json(WORDS)}
    inputs |= session.identities()
    return await _stage(session, "collect", cycle, step, inputs, body)


@task(name="propose", task_run_name="propose, step {step}", **RETRIES)
async def propose(
    cycle: int, step: int, harness: Ref, interactions: tuple[Ref, ...], history: tuple[Ref, ...]
) -> Ref:
    """All candidates of the step from one parent, before any Val result of it exists (PROP-01)."""
    session = current()

    async def body() -> Ref:
        *earlier, latest = groups = [_interactions(session, ref) for ref in interactions]
        evidence = bundle([item for group in earlier for item in group], latest)
        shown = _put_bundle(session, evidence, interactions, groups)
        context = ProposalContext(
            evidence=evidence,
            inventory=session.inventory().model_dump(mode="json"),
            history=tuple(_history(session, ref) for ref in history),
            budgets=session.config.budgets,
            cycle=cycle,
            step=step,
        )
        count = session.config.schedule.candidates
        session.progress.note(f"h{cycle:04d} step {step}: asking for {count} candidates")
        parent = session.harness(harness)
        found = await propose_all(session.improver, parent, context, count)
        known = (parent.code, session.guidance, *texts_in(context.inventory))
        held_out = HeldOut.of(session.release, known)
        found = await asyncio.to_thread(clean_proposals, found, held_out)
        proposals = [item.model_dump(mode="json") for item in found]
        for item in found:
            if isinstance(item, Proposal):
                session.put_harness(item.harness)
        exchanges = session.keep_exchanges(f"propose {session.run_id} h{cycle:04d}/{step}")
        record = {"proposals": proposals, "bundle": shown.digest, "exchanges": exchanges}
        return session.store.put_record("proposals", 1, record)

    inputs = {"harness": harness.digest, "words": digest_json(WORDS), **session.identities()}
    inputs |= {f"interactions-{i}": ref.digest for i, ref in enumerate(interactions)}
    inputs |= {f"history-{i}": ref.digest for i, ref in enumerate(history)}
    return await _stage(session, "propose", cycle, step, inputs, body)


@task(name="preflight", task_run_name="preflight, step {step}", **RETRIES)
async def preflight(
    cycle: int,
    step: int,
    model: Ref,
    harness: Ref,
    proposals: Ref,
    interactions: tuple[Ref, ...],
    designated: Ref,
) -> Finalists:
    """Check, scan, dry-run and preflight every candidate; only those that pass go to Val (SEL-01, SEL-02)."""
    session = current()

    async def body() -> Ref:
        gates = await _gates(session, model, harness, interactions, designated)
        entries: list[dict[str, Any]] = []
        passed: list[Harness] = []
        for index, item in enumerate(_proposals(session, proposals)):
            if isinstance(item, Skip):
                gate = Gate(passed=False, reason=f"no proposal: {item.reason}")
            else:
                session.progress.note(f"h{cycle:04d} step {step}: examining candidate {index}")
                gate = await gates.examine(item.harness, passed, withheld=item.withheld)
                passed += [item.harness] if gate.passed else []
            entries.append({"index": index, **gate.model_dump(mode="json")})
        return session.store.put_record("finalists", 1, {"entries": entries})

    inputs = {
        "model": model.digest,
        "harness": harness.digest,
        "proposals": proposals.digest,
        "designated": designated.digest,
        "gates": digest_json(GATES),
    }
    record = await _stage(session, "preflight", cycle, step, inputs, body)
    return _finalists(session, record, proposals)


async def _gates(
    session: Session, model: Ref, harness: Ref, interactions: tuple[Ref, ...], designated: Ref
) -> Gates:
    parent, (dry_tasks, more_dry_tasks) = session.harness(harness), _dry_tasks(session)
    return Gates(
        broker=await session.broker(model),
        parent=parent,
        parent_run=await dry_run(session.sandboxes, parent, dry_tasks),
        designated=Designated.model_validate(session.store.get_record(designated.digest, "designated")),
        dry_tasks=dry_tasks,
        more_dry_tasks=more_dry_tasks,
        accepted_answers=_accepted(session, interactions),
        seed=session.config.seed,
    )


def _accepted(session: Session, interactions: tuple[Ref, ...]) -> frozenset[str]:
    """The answers that any conversation of the run so far has shown to be right (EVID-06).

    Those of evidence that an adoption cleared too: a comment or a hypothesis may have carried one on.
    """
    earlier = [
        Ref(kind="record", digest=stage.output, size=stage.output_size)
        for stage in session.catalog.stages(session.run_id)
        if stage.name == "collect"
    ]
    return frozenset(
        item.record.submissions[place].text
        for ref in {ref.digest: ref for ref in (*earlier, *interactions)}.values()
        for item in _interactions(session, ref)
        for place, reply in enumerate(item.given)
        if reply.accepted
    )


async def _stage(
    session: Session, name: str, cycle: int, step: int, inputs: dict[str, str], body: Any
) -> Ref:
    """A stage of this run; run, cycle and step are part of its key, for sampling is part of its result."""
    parameters = {"run": session.run_id, "cycle": cycle, "step": step, "seed": session.config.seed}
    key = StageKey(name, VERSION, inputs, parameters)
    done = await run_stage(
        session.catalog, session.store, session.run_id, key, body, cycle=cycle, step=step, role=name
    )
    return done.output


def _train_tasks(session: Session, cursor: int, count: int) -> tuple[Task, ...]:
    order = train_order(session.config.seed, [task.id for task in session.release.split("train")])
    return tuple(session.release.task(task_id) for task_id in draw(order, cursor, count))


def _dry_tasks(session: Session) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Public task dicts, as programs receive them: one of each of the first families, then other kinds."""
    train = session.release.split("train")
    by_family = {task.family: task for task in reversed(train)}
    by_kind = {(task.family, task.subtopic, task.answer_format): task for task in reversed(train)}
    first = [by_family[family] for family in sorted(by_family)][:_DRY_TASKS]
    more = [by_kind[kind] for kind in sorted(by_kind) if by_kind[kind] not in first][:_MORE_DRY_TASKS]
    budgets, inventory = session.config.budgets, session.inventory()

    def given(item: Task) -> dict[str, Any]:
        return program_task(item, budgets, session.guidance, inventory, user_turns=budgets.user_turns)

    return list(map(given, first)), list(map(given, more))


def _interactions(session: Session, ref: Ref) -> list[Interaction]:
    record = session.store.get_record(ref.digest, "interactions")
    return [Interaction.model_validate(item) for item in record["interactions"]]


def _put_bundle(
    session: Session,
    evidence: EvidenceBundle,
    interactions: tuple[Ref, ...],
    groups: list[list[Interaction]],
) -> Ref:
    """The step's bundle as an artifact: its labels, and where each of its interactions is kept."""
    places = {
        id(item): (ref.digest, place)
        for ref, group in zip(interactions, groups, strict=True)
        for place, item in enumerate(group)
    }
    body = evidence.artifact([places[id(item)] for item in evidence.interactions])
    record = session.store.put_record("evidence-bundle", 1, body)
    session.catalog.record_artifact(record, "evidence-bundle", f"propose {session.run_id}")
    return record


def _history(session: Session, ref: Ref) -> HistoryEntry:
    return HistoryEntry.model_validate(session.store.get_record(ref.digest, "history-entry"))


def _proposals(session: Session, ref: Ref) -> list[Proposal | Skip]:
    found: list[Proposal | Skip] = []
    for item in session.store.get_record(ref.digest, "proposals")["proposals"]:
        kind = Proposal if item["command"] == "propose" else Skip
        found.append(kind.model_validate(item))
    return found


def _finalists(session: Session, record: Ref, proposals: Ref) -> Finalists:
    made = _proposals(session, proposals)
    entries = session.store.get_record(record.digest, "finalists")["entries"]
    return Finalists(
        record=record,
        entries=tuple(
            Finalist(
                index=entry["index"],
                program=session.put_harness(item.harness),
                executable=entry["passed"],
                reason=entry["reason"],
                hypothesis=item.hypothesis,
                rationale=item.rationale,
                evidence_ids=item.evidence_ids,
            )
            for entry, item in zip(entries, made, strict=True)
            if isinstance(item, Proposal)
        ),
        skipped=tuple(
            entry["reason"] for entry, item in zip(entries, made, strict=True) if isinstance(item, Skip)
        ),
    )
