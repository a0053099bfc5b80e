"""`./run bench [NAME ...]`: every benchmark of this folder, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; the exit code is the number that failed."""
    folder = Path(__file__).parent
    known = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    unknown = set(names) - set(known)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} before the first benchmark")
    failed = 0
    for name in names or known:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.{name}"]
        failed += subprocess.run(command, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
