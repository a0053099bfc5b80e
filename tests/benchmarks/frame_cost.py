"""What reading one frame costs the host, at worst, beside `json.loads` on the same bytes.

    python -m tests.benchmarks.frame_cost

Every frame is as large as the protocol lets it come (1 MiB), and made to be dear. Limits: 50 ms of processor
time and 8 MiB, the payload counted; memory is held by a test. What `json.loads` takes is what a reader
without the protocol's limits would: time, and what the value weighs. Small frames, as episodes send them,
stand at the end. Exits with 1 when a frame is past the limits.
"""

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from broker.sandbox.protocol import HEADER, MAX_FRAME, Feed, ProtocolError, decode, encode
from tests.fixtures.heavy_frames import HEAVY

LIMIT_MS, LIMIT_MIB = 50.0, 8.0
SMALL = {
    "a request": {"op": "generate", "messages": [{"role": "user", "content": "Which gene?\n" * 80}] * 6},
    "an observation": {"op": "observation", "stdout": "a\tb\n" * 500, "error": "", "worker_lost": False},
}


def _milliseconds(work: Callable[[Any], object], subject: Any, times: int = 1) -> float:
    """Processor time of one run, the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        began = time.process_time_ns()
        for _ in range(times):
            work(subject)
        best = min(best, (time.process_time_ns() - began) / 1e6 / times)
    return best


def _mebibytes(read: Callable[[bytes], object], payload: bytes) -> float:
    tracemalloc.start()
    read(bytes(bytearray(payload)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (1 << 20)


def _strict(payload: bytes) -> Any:
    try:
        return decode(payload)
    except ProtocolError:
        return None


def _plain(payload: bytes) -> Any:
    try:
        return json.loads(payload.decode())
    except (ValueError, RecursionError):
        return None


def main() -> int:
    worst = (0.0, 0.0)
    print(f"{'frame':34} | {'ms':>6} {'MiB':>5} | {'json.loads':>10} {'MiB':>5} | ratio of time")
    for name, payload in HEAVY.items():
        own, peer = _milliseconds(_strict, payload), _milliseconds(_plain, payload)
        weight, plain = _mebibytes(_strict, payload), _mebibytes(_plain, payload)
        worst = max(worst[0], own), max(worst[1], weight)
        kind = " " if _strict(payload) is not None else "x"
        print(f"{kind} {name:32} | {own:6.1f} {weight:5.1f} | {peer:10.1f} {plain:5.1f} | {own / peer:6.2f}")
    count = MAX_FRAME // 6
    own = _milliseconds(
        lambda stream: Feed().add(stream), (len(b"{}").to_bytes(HEADER, "big") + b"{}") * count
    )
    print(f"{count} empty frames, a MiB in all: {1000 * own / count:.1f} us each")
    for name, frame in SMALL.items():
        payload = encode(frame)[HEADER:]
        own, peer, back = (
            1000 * _milliseconds(work, subject, 200)
            for work, subject in ((decode, payload), (_plain, payload), (encode, frame))
        )
        print(f"{name}, {len(payload)} bytes: read {own:.0f} us ({own / peer:.1f} of peer), write {back:.0f}")
    print(f"worst: {worst[0]:.1f} ms of {LIMIT_MS:g}, {worst[1]:.1f} MiB of {LIMIT_MIB:g}  (x: refused)")
    return int(worst[0] > LIMIT_MS or worst[1] > LIMIT_MIB)


if __name__ == "__main__":
    raise SystemExit(main())
