"""hidl's GPU half on the real GPUs of this machine, within ten minutes: sums, ways, overlap, programs, rivals.

::

    python -m benchmarks.gpu --output FILE [--only EXPRESSION] [--missing] [--mpiexec "PATH [OPTION...]"]

It needs PyTorch built for CUDA, NumPy, mpi4py and an MPI library with its mpiexec, and no hidl that is installed; more
is tried where CuPy, Numba, Dask or Horovod are there. Ranks may share one GPU. Each trial runs in processes of its own,
within its time; one that fails or crashes leaves the others be. The document goes to FILE, a page beside it (.md), and
the page to standard output too; the status is 0 if nothing failed.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import page, programs
from benchmarks.gpu.launch import Found, Launcher

#: Name of the trial: the part of ``ranks``, the ranks, the seconds at most.
_PARTS = {
    "which way": ("detection", 2, 60),
    "sums, auto": ("correctness auto", 2, 60),
    "sums, staged": ("correctness staged", 2, 60),
    "sums, direct": ("correctness direct", 2, 60),
    "a hook that raises": ("failures", 2, 40),
    "copies": ("bandwidth", 1, 40),
    "pinned where it is": ("registered", 2, 40),
}
#: These are measured when nothing else runs.
_RATES = {"ResNet-50, 2 ranks": ("steps", 2, 110), "ResNet-50, 1 rank": ("steps", 1, 60)}
#: Of MPI itself; they crash where the library does not read GPU memory, which is no fault of hidl's.
OPERATIONS = (
    "Send, Recv", "Isend, Irecv", "Bcast", "Allreduce", "Reduce_scatter_block", "Alltoall", "Ibcast", "Iallreduce",
    "Put", "Reduce_local",
)  # fmt: skip
_OPERATION_SECONDS = 30
_PROGRAM_SECONDS = 90
_AT_ONCE = 4


def run(launcher: Launcher, seconds: float, only: str = "", before: dict[str, Found] | None = None) -> dict[str, Any]:
    """Return what each trial found; ``seconds`` are for all together.

    ``only``: those whose names this expression finds. ``before``: what another environment found; what it lacked for
    is tried here.
    """
    until = time.monotonic() + seconds
    found = dict(before or {})

    def attempt(name: str, act: Any, most: float) -> None:
        if not re.search(only, name) or ("absent" not in found.get(name, {"absent": ""})):
            return
        begin = time.monotonic()
        left = min(most, until - begin)
        try:
            outcome = act(left) if left > 1 else {"absent": "no time was left"}
        except (KeyError, StopIteration, ValueError) as error:  # of a document that is not as expected
            outcome = {"failed": f"{type(error).__name__}: {error}"}
        found[name] = outcome | {"trial_seconds": round(time.monotonic() - begin, 1)}
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)

    attempt("MPI on GPU memory", partial(_operations, launcher), _OPERATION_SECONDS * 4)
    for name, (words, ranks, most) in _PARTS.items():
        attempt(name, partial(_part, launcher, words, ranks), most)
    for trial in programs.trials():
        attempt(trial.name, partial(trial.run, launcher), _PROGRAM_SECONDS)
    for name, (words, ranks, most) in _RATES.items():
        attempt(name, partial(_part, launcher, words, ranks), most)
    return {
        "schema": "hidl.gpu/1",
        "date": datetime.now(UTC).date().isoformat(),
        "device": launcher.device,
        "trials": found,
    }


def _part(launcher: Launcher, words: str, ranks: int, seconds: float) -> Found:
    done = launcher.module(["benchmarks.gpu.ranks", *words.split()], ranks, seconds)
    if done.status != 0 or not done.document:
        return done.failure()
    cases = ((name, case) for name, case in done.document.items() if isinstance(case, dict))
    wrong = [name for name, case in cases if not case.get("passed", True)]
    return {"failed": f"wrong: {', '.join(wrong)}", **done.document} if wrong else done.document


def _operations(launcher: Launcher, seconds: float) -> Found:
    """Try each operation of MPI on GPU memory, some at once: each may take its processes down."""

    def attempt(name: str) -> str:
        done = launcher.module(["benchmarks.gpu.operations", name], 2, min(seconds, _OPERATION_SECONDS))
        if done.status == 0 and done.document:
            return "right"
        wrong = next((line for line in done.output.splitlines() if "elements are wrong" in line), None)
        return f"wrong: {wrong}" if wrong else f"ends with {done.status}"

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {"operations": dict(zip(OPERATIONS, pool.map(attempt, OPERATIONS), strict=True))}


def main() -> int:
    """Run all trials; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="the file for the JSON document")
    parser.add_argument("--only", default="", help="the trials whose names this regular expression finds")
    parser.add_argument("--missing", action="store_true", help="try what FILE says was absent; keep the rest of it")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu tests this program itself")
    parser.add_argument("--mpiexec", default=shutil.which("mpiexec") or "mpiexec", help="the launcher, with options")
    parser.add_argument("--seconds", type=float, default=560, help="the time for all trials together")
    given = parser.parse_args()
    before = json.loads(given.output.read_text(encoding="utf-8"))["trials"] if given.missing else {}
    document = run(Launcher(shlex.split(given.mpiexec), given.device), given.seconds, given.only, before)
    given.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    text = page.render(document)
    given.output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if all("failed" not in found for found in document["trials"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
