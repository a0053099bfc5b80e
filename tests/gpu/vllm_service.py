"""vLLM as a run's own service on a GPU: killed and replaced, released before training, then on the export.

    python -m tests.gpu.vllm_service OUTDIR [--graphs] [--root FOLDER]

What a user would type, twice: `rinr run model=vllm trainer.device=cuda` with one cycle, whose vLLM is killed
with SIGKILL as soon as it serves, and `rinr evaluate --set model=vllm` on the export, whose Test stands
beside that of the embedded engine in the run (`export_test`). The GPU's memory is read twice a second
meanwhile. Writes OUTDIR/summary.json and memory.csv and copies the logs; exit code 1 if a proof fails. Needs
vLLM, Prefect and a sandbox; under six minutes on one H200. `--rehearse` goes through it with the stand-ins of
the suite, but for the training on the GPU (put tests/fixtures/fake_gpu on PATH, name an empty folder in
FAKE_GPU).
"""

import argparse
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from datetime import datetime
from pathlib import Path
from typing import Any

from broker.gpu_memory import TOLERANCE_MIB, devices
from broker.process_group import processes
from catalog.database import Catalog
from catalog.store import Store

RUN = "vllm-service"
SIZES = ("schedule.cycles=1", "rl.updates=2", "trainer.device=cuda", "trainer.vllm=off", "seed=1")
REHEARSAL = (
    *("recipe=ci", "model.inference=vllm", "model.vllm.command=[python,-m,tests.fixtures.vllm_server]"),
    *("model.vllm.arguments=[--latency,'0.1']", "trainer.device=cpu", "rl.updates=4", "rl.attempts=8"),
    *("schedule.interactions=6", "schedule.candidates=1"),
)
SECONDS = 420


class Memory(threading.Thread):
    """Used MiB of GPU 0, with the time of day."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.rows: list[tuple[float, int]] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            if found := devices():
                self.rows.append((time.time(), found[0].used))

    def between(self, start: float, end: float) -> list[int]:
        return [used for when, used in self.rows if start <= when <= end]


def command(out: Path, name: str, words: list[str]) -> tuple[int, float]:
    """Exit code and seconds of one `rinr` command; its output goes to a file, the end of it to the screen."""
    started = time.monotonic()
    with (out / f"{name}.log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-m", "flows", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    print(f"--- {name}: status {done.returncode}\n", tail(out / f"{name}.log", 40), sep="", flush=True)
    return done.returncode, round(time.monotonic() - started, 1)


def tail(path: Path, lines: int) -> str:
    text = path.read_text(errors="replace").splitlines() if path.exists() else ["(no such file)"]
    return "\n".join(line[:300] for line in text[-lines:])


def events(root: Path, run: str) -> list[dict[str, Any]]:
    path = root / run / "inference" / "services.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kill_first(root: Path, killed: dict[str, Any]) -> None:
    """SIGKILL for vLLM's API server, whose engine process then has lost its parent with the GPU in hand."""
    while not (started := [event for event in events(root, RUN) if event["event"] == "started"]):
        time.sleep(0.05)
    group = started[0]["pid"]
    below = [one for one in processes() if one.group == group and one.pid != group]
    server = next(one for one in below if one.parent == group)
    os.kill(server.pid, signal.SIGKILL)
    killed |= {"at": time.time(), "pid": server.pid, "processes": [f"{one.pid} {one.name}" for one in below]}
    while left := [one for one in processes() if one.pid in {one.pid for one in below}]:
        if time.time() - killed["at"] > 30:
            break
        time.sleep(0.02)
    killed |= {
        "left_after_30_s": [one.pid for one in left],
        "seconds_gone": round(time.time() - killed["at"], 2),
    }


def evaluations(root: Path, run: str) -> list[dict[str, Any]]:
    """What was measured, and how fast tokens came."""
    rows: list[dict[str, Any]] = []
    for row in Catalog(root / "catalog.db").measurements(run):
        seconds, spent = row.detail.get("seconds"), row.detail.get("spent") or {}
        tokens = spent.get("completion_tokens", 0)
        rows.append(
            {
                "kind": row.kind,
                "split": row.split,
                "right": f"{row.correct}/{row.total}",
                "seconds": seconds,
                "completion_tokens": tokens,
                "prompt_tokens": spent.get("prompt_tokens"),
                "completion_tokens_per_second": round(tokens / seconds, 1) if seconds else None,
                "server_losses": row.detail.get("server_losses"),
            }
        )
    return rows


def one_run(out: Path, root: Path, how: tuple[str, ...], summary: dict[str, Any]) -> None:
    killed: dict[str, Any] = {}
    threading.Thread(target=kill_first, args=(root, killed), daemon=True).start()
    words = ["run", f"run_id={RUN}", "model.vllm.devices=[0]", *SIZES, *how]
    code, seconds = command(out, "run", [*words, f"storage.root={root}"])
    summary["run"] = {
        "status": code,
        "seconds": seconds,
        "killed": killed,
        "services": events(root, RUN),
        "measured": evaluations(root, RUN) if (root / "catalog.db").exists() else [],
        "stages": [
            {"name": stage.name, "role": stage.role, "seconds": round(stage.seconds, 1)}
            for stage in Catalog(root / "catalog.db").stages(RUN)
        ],
    }


def on_the_export(out: Path, root: Path, how: tuple[str, ...], summary: dict[str, Any]) -> None:
    rows = Catalog(root / "catalog.db").measurements(RUN)
    ended = next(row for row in rows if row.kind == "export_test")
    program = out / "program.py"
    program.write_bytes(Store(root / "store").get_blob(ended.harness))
    sets = ["model.vllm.devices=[0]", "run_id=on-export", *how]
    words = [word for setting in [*sets, f"storage.root={root}"] for word in ("--set", setting)]
    folder = root / "models" / ended.model.removeprefix("sha256:")[:16]
    asked = ["--harness", str(program), "--model", str(folder), "--split", "test"]
    code, seconds = command(out, "evaluate", ["evaluate", *asked, *words])
    summary["export"] = {
        "status": code,
        "seconds": seconds,
        "folder": folder.name,
        "services": events(root, "on-export"),
        "measured": evaluations(root, "on-export"),
    }


def proofs(root: Path, memory: Memory, summary: dict[str, Any]) -> dict[str, bool]:
    """What must hold; a missing part is a proof that fails."""
    ran: list[dict[str, Any]] = summary["run"]["services"]
    kinds = [event["event"] for event in ran]
    released = [event for event in ran if event["event"] == "released"]
    free = all(
        after["used_mib"] <= before["used_mib"] + TOLERANCE_MIB
        for event in [*released, *summary["export"]["services"][-1:]]
        for before, after in zip(event["before"], event["after"], strict=True)
    )
    last = datetime.fromisoformat(released[-1]["time"]).timestamp()
    training = root / RUN / "r0001" / "train"
    began, ended = ((training / name).stat().st_mtime for name in ("job.json", "result.json"))
    summary["memory_mib"] = {
        "before": memory.rows[0][1],
        "most_before_training": max(memory.between(0, began)),
        "around_release": memory.between(last - 3, last + 3),
        "most_while_training": max(memory.between(began, ended)),
        "after": memory.rows[-1][1],
    }
    kept = summary["memory_mib"]
    return {
        "run and evaluation ended well": summary["run"]["status"] == summary["export"]["status"] == 0,
        "vLLM took the GPU": kept["most_before_training"] > kept["before"] + 4_000,
        "killed, noticed, replaced once": kinds == ["started", "lost", "released", "started", "released"],
        "its processes ended with it": summary["run"]["killed"].get("left_after_30_s") == [],
        "memory free after each release": bool(released) and free,
        "released before training": last < began,
        "trained on the same GPU": kept["most_while_training"] > kept["before"] + TOLERANCE_MIB,
        "vLLM answered for the export": bool(summary["export"]["measured"]),
        "free at the end": kept["after"] <= kept["before"] + TOLERANCE_MIB,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs: starts some 20 s later")
    parser.add_argument("--root", type=Path, default=Path("/tmp/vllm-service-runs"))
    parser.add_argument("--rehearse", action="store_true", help="without a GPU and without vLLM")
    options = parser.parse_args()
    out, root = options.out.absolute(), options.root.absolute()
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root, ignore_errors=True)
    how = ("recipe=laptop", "model=vllm", *(() if options.graphs else ("model.vllm.enforce_eager=true",)))
    how = REHEARSAL if options.rehearse else how
    summary: dict[str, Any] = {"gpu": [device.name for device in devices()], "eager": not options.graphs}
    memory = Memory()
    memory.start()
    started = time.monotonic()
    time.sleep(1.5)
    holds: dict[str, bool] = {}
    try:
        one_run(out, root, how, summary)
        on_the_export(out, root, how, summary)
        time.sleep(2)
        holds = proofs(root, memory, summary)
    except Exception:
        summary["error"] = traceback.format_exc()
        print(summary["error"])
    memory.over.set()
    summary |= {"proofs": holds, "seconds": round(time.monotonic() - started, 1)}
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    with (out / "memory.csv").open("w") as handle:
        csv.writer(handle).writerows([("time", "used_mib"), *memory.rows])
    for log in [*root.glob("*/inference/*.log"), *root.glob("*/r0001/*/log.txt")]:
        kept = out / f"{log.parts[-3]}-{log.parts[-2]}-{log.name}"
        shutil.copyfile(log, kept)
        if not holds or not all(holds.values()):
            print(f"--- {kept.name}\n{tail(log, 30)}")
    print(
        json.dumps({"proofs": holds, "memory_mib": summary.get("memory_mib"), "seconds": summary["seconds"]})
    )
    return 0 if holds and all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
