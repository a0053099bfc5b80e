"""One RL phase with SkyRL on a real GPU, from the published request to the consumed result.

    python -m tests.gpu.skyrl_phase OUT [NAME=VALUE ...]

The run measures its baseline, releases its engine (HAND-04) and publishes a handoff request; `rinr worker
--once`, in a process of its own as a user would start it, claims the request, trains with SkyRL, repairs
and validates the export and publishes the result; the run consumes it. OUT gets summary.json and every log.
Needs a GPU, SkyRL (deploy/skyrl.md), the project's own packages, and bubblewrap or Docker. NAME=VALUE are
settings of `rinr run`; `program=FILE` is another program.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

PROGRAM_TRAITS = ("direct", "examples", "look_up")
"""The first program that the rules adopt on this release; H0 earns nothing under the untouched model."""
SETTINGS = (
    "recipe=laptop",
    "run_id=skyrl-phase",
    "concurrency=64",
    "sandbox.pool=16",
    "rl.updates=12",
    "rl.prompts_per_batch=8",
    "rl.attempts=8",
    "rl.learning_rate=1e-5",
    "trainer.kind=skyrl",
    "trainer.claim=worker",
    # vLLM is the rollout engine here, and loads the weights after every update.
    "trainer.vllm=off",
    "trainer.skyrl.micro_batch=16",
    "trainer.skyrl.memory_share=0.4",
    "trainer.skyrl.options={generator.inference_engine.enforce_eager:true}",
)
PACKAGES = (
    "rinr",
    "prefect",
    "hydra-core",
    "sqlmodel",
    "torch",
    "transformers",
    "ray",
    "vllm",
    "skyrl",
    "vllm-router",
)
KEPT = (".txt", ".json", ".jsonl", ".log")
MINUTES = 8.5


def facts() -> dict[str, Any]:
    """What this machine is, printed before anything can fail."""
    found: dict[str, Any] = {"python": sys.version.split()[0], "cores": os.cpu_count()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    found["flash_attn"] = importlib.util.find_spec("flash_attn") is not None
    found["sandbox"] = shutil.which("bwrap") or shutil.which("docker")
    for folder in ("/dev/shm", tempfile.gettempdir()):
        found[f"free {folder}"] = f"{shutil.disk_usage(folder).free / 2**30:.0f} GiB"
    query = ["nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"]
    found["gpus"] = (
        subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
        if shutil.which(query[0])
        else []
    )
    return found


class Clock:
    """Seconds of each part, printed as they pass."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.last = self.begun = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.parts[name] = round(now - self.last, 2)
        self.last = now
        print(f"[{now - self.begun:6.1f} s] {name}: {self.parts[name]} s", flush=True)


async def phase(root: Path, overrides: list[str], clock: Clock) -> dict[str, Any]:
    from broker.harness import Harness
    from flows.compose import compose_config
    from harness_lab.improver.assemble import Trait, assemble
    from report.progress import RunProgress
    from rl.handoff import check_result
    from tasks.measure import load_evaluation, measure
    from tasks.outer import publish
    from tasks.session import open_session

    program = next((o.split("=", 1)[1] for o in overrides if o.startswith("program=")), None)
    settings = [o for o in overrides if not o.startswith("program=")]
    config = compose_config([*SETTINGS, f"storage.root={root}", *settings])
    code = Path(program).read_text() if program else assemble([Trait(name) for name in PROGRAM_TRAITS])
    with RunProgress() as progress:
        async with open_session(config, progress) as session:
            model, harness = session.import_model(), session.put_harness(Harness(code=code))
            session.begin(model)
            clock.lap("set-up")
            baseline = await measure(session, "rl_baseline_test", 1, 0, model, harness, -1, "test")
            before = load_evaluation(session.store, baseline)
            clock.lap("baseline Test")
            # In this order: a worker may train on the same GPU in the next moment.
            await session.release_services()
            request = await publish.fn(1, model, harness)
            clock.lap("release and publish")
            await serve(root, config.storage.cache)
            clock.lap("worker: claim to result")
            result = session.catalog.result(request)
            assert result is not None, "the worker published nothing"
            check_result(session.catalog.request(request), result, request_digest=request)
            after = load_evaluation_of(session, result)
            return {
                "request": request,
                "result": result,
                "baseline": f"{before.correct}/{before.total}",
                "export": f"{after['correct']}/{after['total']}",
                "settings": config.model_dump(mode="json"),
            }


def load_evaluation_of(session: Any, result: dict[str, Any]) -> dict[str, Any]:
    record = session.store.get_record(result["evaluation"], "evaluation")
    outcomes = record["outcomes"]
    return {"correct": sum(bool(item["correct"]) for item in outcomes), "total": len(outcomes)}


async def serve(root: Path, cache: str) -> None:
    """`rinr worker --once`, with its output on ours."""
    command = [
        sys.executable,
        "-m",
        "flows",
        "worker",
        "--once",
        "--debug",
        "--root",
        str(root),
        "--cache",
        cache,
    ]
    child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(MINUTES * 60):
            status = await child.wait()
    finally:
        if child.returncode is None:
            child.terminate()
            await child.wait()
    assert status == 0, f"the worker ended with status {status}"


def collect_logs(root: Path, out: Path) -> dict[str, Any]:
    """Copy what is small and text; what the job said of itself."""
    told: dict[str, Any] = {"updates": [], "parts": {}, "lost": [], "repairs": []}
    for path in sorted(root.rglob("*")):
        if (
            path.is_file()
            and path.suffix in KEPT
            and path.stat().st_size < 4 << 20
            and "store" not in path.parts
        ):
            target = out / "logs" / path.relative_to(root)
            if "models" in path.parts or "policy" in path.parts or "export" in path.parts:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for path in root.rglob("train/progress.jsonl"):
        for event in map(json.loads, path.read_text().splitlines()):
            match event.pop("event"):
                case "update":
                    told["updates"].append(event)
                case "part":
                    told["parts"][event["name"]] = round(event["seconds"], 2)
                case "lost":
                    told["lost"].append(event)
                case "repaired":
                    told["repairs"] = event["repairs"]
                case "started":
                    told["started"] = event
    for path in root.rglob("train/result.json"):
        told["job"] = {k: v for k, v in json.loads(path.read_bytes()).items() if k != "updates"}
    return told


def print_tails(root: Path) -> None:
    """After a failure: the end of every log, newest last."""
    logs = [
        p
        for p in root.rglob("*")
        if p.is_file() and (p.suffix == ".log" or p.name in ("log.txt", "vllm.txt"))
    ]
    for path in sorted(logs, key=lambda p: p.stat().st_mtime):
        lines = path.read_text(errors="replace").splitlines()
        print(f"===== {path} ({len(lines)} lines)", *lines[-40:], sep="\n", flush=True)


def main(out: Path, overrides: list[str]) -> int:
    out.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="rinr-phase-"))
    clock, summary = Clock(), {"facts": facts()}
    print(json.dumps(summary["facts"], indent=1), flush=True)
    try:
        summary |= asyncio.run(phase(root, overrides, clock))
        summary["ok"] = True
    except BaseException as error:
        summary |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
        traceback.print_exc()
        print_tails(root)
    summary |= {
        "seconds": clock.parts,
        "total": round(time.monotonic() - clock.begun, 1),
        **collect_logs(root, out),
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1, default=str))
    for update in summary["updates"]:
        line = {k: update[k] for k in ("update", "reward", "episodes", "logprob_gap_mean", "gradient_norm")}
        seconds = {k: round(update[k], 2) for k in update if k.startswith("seconds_")}
        print(json.dumps({**line, **seconds}))
    print(
        json.dumps(
            {k: summary.get(k) for k in ("ok", "error", "baseline", "export", "seconds", "parts", "total")}
        )
    )
    shutil.rmtree(root, ignore_errors=True)
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
