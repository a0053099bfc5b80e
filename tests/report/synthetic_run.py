"""A made-up run of three cycles as plain rows: deterministic, and hostile where a program may be.

The recorded parts are dumps of the rooms' own models, so a change of theirs is noticed here.
"""

import random
from datetime import UTC, datetime
from typing import Any

from broker.evaluation import TaskOutcome
from broker.record import StopReason
from catalog.digest import digest_bytes
from harness_lab.selection import Compared, Decision
from harness_lab.statistics import PairedTable
from report.assemble import RunRows
from rl.job_spec import UpdateReport

HOSTILE = "<script>alert('owned')</script>"
FAMILIES = ("cytoband", "nearest-gene", "clinvar", "gene-length")
REASONS = (StopReason.CONTEXT_BUDGET, StopReason.NO_SUBMISSION)
TESTS = 60
# Right and readable answers of the four Test boundaries of each cycle.
SCORES = (
    ((2, 20), (22, 45), (22, 45), (33, 56)),
    ((33, 56), (41, 58), (41, 58), (49, 60)),
    ((48, 60), (50, 60), (51, 60), (55, 60)),
)

PROGRAM = '''"""A loop of thought, lookup and answer."""

RULES = "Answer as <answer>...</answer>."


def run(task, api):
    messages = [{"role": "system", "content": RULES, "source": "harness"}]
    messages.append({"role": "user", "content": task["prompt"], "source": "task"})
    for _ in range(task["budgets"]["model_calls"]):
        text = api.generate(messages)
        if "<answer>" in text:
            return api.submit(text)
'''


SPELLINGS = ("tags = 0", "tags = 2", "tags = 3", "markup", "unpaired tags: 1 open, 0 closed", "no option E")


def program(generation: int) -> str:
    text = PROGRAM
    for index in range(generation):
        text = text.replace(
            "def run(", f'# {HOSTILE}\nHINT_{index} = "Query the lake first & quote the row."\n\n\ndef run('
        )
        text = text.replace("RULES,", f"RULES + HINT_{index},", 1)
    return text


def outcomes(right: int, valid: int, total: int, seed: int) -> list[dict[str, Any]]:
    """Task outcomes with the given sums; the same tasks tend to be right under every seed."""
    order = sorted(range(total), key=lambda index: (index * 7 + seed) % total)
    made: list[dict[str, Any]] = []
    chance, spelling = random.Random(seed), random.Random(seed)
    for rank, index in enumerate(order):
        submitted = rank < valid or chance.random() < 0.5
        outcome = TaskOutcome(
            task_id=f"task-{index:03d}",
            family=FAMILIES[index % 4],
            subtopic="any",
            material_group=f"group-{index // 3}",
            correct=rank < right,
            format_valid=rank < valid,
            submitted=submitted,
            stop_reason=StopReason.FIRST_ANSWER if submitted else chance.choice(REASONS),
            error=None,
            model_calls=3,
            tool_calls=2,
            tool_errors=chance.randint(0, 1),
            answer_reason="" if rank < valid else spelling.choice(SPELLINGS),
        )
        made.append(outcome.model_dump(mode="json"))
    return made


def measurement(
    cycle: int, kind: str, split: str, harness: str, model: str, numbers: tuple[int, int], **extra: Any
) -> dict[str, Any]:
    right, valid = numbers
    return {
        "run_id": "demo-01",
        "cycle": cycle,
        "kind": kind,
        "split": split,
        "harness": harness,
        "model": model,
        "correct": right,
        "valid": valid,
        "total": TESTS,
        "stage_key": "sha256:" + "0" * 64,
        "detail": {"outcomes": outcomes(right, valid, TESTS, cycle), **extra},
    }


def update(cycle: int, number: int) -> dict[str, Any]:
    report = UpdateReport(
        update=number,
        reward=min(1.0, 0.2 * cycle + 0.09 * number),
        completion_rate=0.9,
        episodes=32,
        model_calls=64,
        zero_call_episodes=0,
        zero_variance_groups=1,
        lost_prompts=0,
        silent_prompts=0,
        loss=0.01,
        gradient_norm=1.5 / number,
        skipped="no_contrast" if (cycle, number) == (3, 5) else None,
        clip_share=0.012,
        entropy=2.25,
        logprob_gap_mean=0.0004,
        logprob_gap_max=0.01,
        valid_tokens=1_000,
        trained_tokens=900,
        computed_tokens=2_000,
        plain_tokens=9_000,
        micro_batches=4,
        generated_tokens=1_200,
        tokens_per_second=412.0,
        seconds_generate=30.0,
        seconds_update=10.0,
        seconds_sync=1.0,
    )
    return {"cycle": cycle, **report.model_dump(mode="json")}


def rows() -> RunRows:
    texts = [program(generation) for generation in range(8)]
    digests = [digest_bytes(text.encode()) for text in texts]
    models = [digest_bytes(f"model {index}".encode()) for index in range(4)]
    measurements: list[dict[str, Any]] = []
    decisions: list[dict[str, Any]] = []
    parent = 0
    for cycle, four in enumerate(SCORES, start=1):
        model = models[cycle - 1]
        measurements.append(
            measurement(cycle, "phase_baseline_test", "test", digests[parent], model, four[0])
        )
        for step in (1, 2):
            base, wins = four[step - 1], step == 1
            better = (min(60, base[0] + 9), min(60, base[1] + 6))
            measurements.append(
                measurement(cycle, "step_val_parent", "val", digests[parent], model, base, step=step)
            )
            for index, numbers in enumerate((better if wins else base, base)):
                program_digest, where = digests[parent + index + 1], {"step": step, "candidate": index}
                measurements.append(
                    measurement(cycle, "step_val_candidate", "val", program_digest, model, numbers, **where)
                )
            body = decision(digests, parent, base, better if wins else base, wins)
            decisions.append({"cycle": cycle, "step": step, "decision": body})
            parent += wins
        for kind, served, numbers in (
            ("phase_end_test", model, four[1]),
            ("rl_baseline_test", model, four[2]),
            ("export_test", models[cycle], four[3]),
        ):
            measurements.append(measurement(cycle, kind, "test", digests[parent], served, numbers))
    known = dict(zip(digests, texts, strict=True))
    return RunRows(
        run={
            "run_id": "demo-01",
            "recipe": "laptop",
            "status": "completed",
            "detail": "",
            "started": datetime(2025, 11, 30, 12, 0, tzinfo=UTC),
            "finished": datetime(2025, 11, 30, 12, 27, 31, tzinfo=UTC),
            "config": {"seed": 7, "release": "open-genomics", "machine": {"cpu": "2 cores"}},
            "identities": {"release": digests[0], "verifier": digests[1], "auxiliary": "rules"},
        },
        measurements=measurements,
        decisions=decisions,
        updates=[update(cycle, number) for cycle in (1, 2, 3) for number in range(1, 6)],
        stages=[
            {"name": name, "cycle": cycle, "seconds": seconds}
            for cycle in (1, 2, 3)
            for name, seconds in (("evaluate", 71.5), ("propose", 2.5), ("train", 260.0))
        ],
        program=lambda digest: known.get(digest, ""),
    )


def decision(
    digests: list[str], parent: int, base: tuple[int, int], better: tuple[int, int], wins: bool
) -> dict[str, Any]:
    """The dump of a step's decision, with the proposals that never reached Val."""
    decided = Decision(
        adopted=wins,
        selected=digests[parent + wins],
        index=0 if wins else None,
        reason="candidate 0 is above the parent" if wins else "no candidate is above the parent",
        parent=digests[parent],
        parent_correct=base[0],
        parent_valid=base[1],
        parent_errors=0,
        total=TESTS,
        candidates=(
            Compared(
                index=0,
                harness=digests[parent + 1],
                hypothesis=f"Wrong answers came without a lookup {HOSTILE}; query the lake first.",
                correct=better[0],
                valid=better[1],
                errors=0,
                eligible=wins,
                reason=f"{better[0]} of {TESTS} against the parent's {base[0]}",
                table=table(11, 2, 0.022, (0.05, 0.25)) if wins else table(2, 2, 1.0, (-0.05, 0.05)),
            ),
            Compared(
                index=1,
                harness=digests[parent + 2],
                hypothesis="Show the answer form once more.",
                correct=base[0],
                valid=base[1],
                errors=0,
                eligible=False,
                reason=f"{base[0]} of {TESTS} is not above the parent's {base[0]}",
                table=table(1, 1, 1.0, (-0.03, 0.03)),
            ),
        ),
    )
    dropped = {
        "index": 2,
        "harness": digests[parent + 3],
        "reason": "preflight: three tasks unfinished",
        "hypothesis": "Inspect the schema after a tool error.",
    }
    cited = {"index": 0, "rationale": "Two tasks had no lookup.", "evidence_ids": ["e1:0", "e4:1"]}
    return {**decided.model_dump(mode="json"), "dropped": [dropped], "proposals": [cited]}


def table(fixed: int, broken: int, p_value: float, interval: tuple[float, float]) -> PairedTable:
    return PairedTable(
        both=10,
        fixed=fixed,
        broken=broken,
        neither=TESTS - 10 - fixed - broken,
        p_value=p_value,
        interval=interval,
    )
