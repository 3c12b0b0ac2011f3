"""The averager on one real GPU: right sums, the way that they take, overlap, and its rivals; within four minutes.

::

    python -m benchmarks.gpu --output FILE [--device cpu] [--mpiexec PATH] [--seconds N]

It needs PyTorch built for CUDA, NumPy, mpi4py and an MPI library with its mpiexec, and no hidl that is installed: two
ranks share the GPU. Each part runs in processes of its own, within its time; one that fails leaves the others be. The
document goes to FILE, and a table to standard output; the status is 0 if all parts ran and all sums are right.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parent.parent
#: Name of the part in the document: the part, the ranks, the seconds at most.
_RUNS = {
    "detection": ("detection", 2, 60),
    "correctness, 2 ranks": ("correctness", 2, 60),
    "failures, 2 ranks": ("failures", 2, 40),
    "bandwidth": ("bandwidth", 1, 30),
    "pinned where it is": ("registered", 2, 30),
    "ResNet-50, 2 ranks": ("steps", 2, 75),
    "ResNet-50, 1 rank": ("steps", 1, 60),
}
_LAST_LINES = 12
_PATIENCE_SECONDS = 5


def run(device: str, mpiexec: str, seconds: float) -> dict[str, Any]:
    """Return what each part found, or ``failed`` with the end of what it wrote; ``seconds`` are for all together."""
    until = time.monotonic() + seconds
    found: dict[str, Any] = {}
    for name, (part, ranks, most) in _RUNS.items():
        begin = time.monotonic()
        left = min(most, until - begin)
        found[name] = _part(part, ranks, device, mpiexec, left) if left > 0 else {"failed": "no time is left"}
        found[name]["part_seconds"] = round(time.monotonic() - begin, 1)
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    return {"schema": "hidl.gpu/1", "device": device, "parts": found}


def _part(part: str, ranks: int, device: str, mpiexec: str, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "found.json"
        command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "benchmarks.gpu_ranks", part, device, str(file)]
        environment = {**os.environ, "PYTHONPATH": f"{_REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"}
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
            try:
                status: int | str = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.terminate()  # which ends the ranks
                try:
                    process.wait(_PATIENCE_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                status = f"no end after {seconds:.0f} s"
        if status == 0 and file.exists():
            document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return document
        said = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        return {"failed": f"status {status}" if isinstance(status, int) else status, "said": said}


def table(document: dict[str, Any]) -> str:
    """Return the parts in a few lines each."""
    lines = []
    for name, part in document["parts"].items():
        seconds = part["part_seconds"]
        if "failed" in part:
            lines.append(f"{name}: FAILED ({part['failed']}), {seconds} s")
            lines += [f"    {line}" for line in part.get("said", ())]
            continue
        lines.append(f"{name}: {seconds} s")
        for key, value in part.items():
            if key not in ("part_seconds", "samples"):
                lines.append(f"    {key}: {_short(value)}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(each)}" for key, each in value.items())
    return str(value)


def is_right(document: dict[str, Any]) -> bool:
    """Whether all parts ran, and all sums are right."""
    parts = document["parts"].values()
    cases = [case for part in parts for case in part.values() if isinstance(case, dict)]
    return all("failed" not in part for part in parts) and all(case.get("passed", True) for case in cases)


def main() -> int:
    """Run all parts; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="the file for the JSON document")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu tests this program itself")
    parser.add_argument("--mpiexec", default=shutil.which("mpiexec") or "mpiexec", help="the launcher")
    parser.add_argument("--seconds", type=float, default=230, help="the time for all parts together")
    given = parser.parse_args()
    document = run(given.device, given.mpiexec, given.seconds)
    given.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(table(document))
    return 0 if is_right(document) else 1


if __name__ == "__main__":
    sys.exit(main())
