"""``torch.distributed`` over MPI (mpi4c10d) and gloo, in turn within one run: two ranks, pinned to a core each."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import stacks
from benchmarks.measure import SMALL, Outcome, median_difference, median_ratio

_REPOSITORY = Path(__file__).parent.parent
#: The largest share of gloo's time, by operation and bytes.
_OF_GLOO = {
    "all_reduce 4000": 1 / 10,
    "all_reduce 64000": 1 / 10,
    "all_reduce 1000000": 1 / 3,
    "all_reduce 25000000": 1 / 2.3,
    "all_reduce 100000000": 1 / 1.6,
    "all_gather 25000000": 1 / 5,
    "reduce_scatter 25000000": 1 / 5,
    "fsdp2": 1 / 1.6,
    "ddp": 1 / 1.1,
}
#: The largest share of the time of mpi4py's own Allreduce, of the time of hidl's averager.
_OF_RAW = {"all_reduce 25000000": 1.1, "all_reduce 100000000": 1.1}
_OF_AVERAGER = 1.03
_SECONDS_ADDED = 25e-6
_LABELS = {"fsdp2": "FSDP2, 4 layers", "ddp": "DDP, ResNet-50, 64 pixels"}
Times = dict[str, list[float]]


def measure() -> list[Outcome]:
    """Return our time as a share of the others'."""
    collectives = _ranks(2, "collectives", "-bind-to", "core")
    measured = collectives if SMALL else collectives | _ranks(2, "training", "-bind-to", "core")
    outcomes = [
        _share(f"{_label(what)}: our time / gloo's", measured[what], "gloo", bound)
        for what, bound in _OF_GLOO.items()
        if what in measured
    ]
    outcomes += [
        _share(f"{_label(what)}: our time / mpi4py's", measured[what], "mpi4py", bound)
        for what, bound in _OF_RAW.items()
        if what in measured
    ]
    small = measured["all_reduce 4000"]
    added = median_difference(small["mpi"], small["mpi4py"])
    outcomes.append(Outcome("all_reduce, 4 KB: added to mpi4py", added, _SECONDS_ADDED, "s", _details(small, "mpi4py")))
    if "ddp" in measured:
        outcomes.append(_share("DDP: our time / hidl's averager's", measured["ddp"], "averager", _OF_AVERAGER))
    crowded = _ranks(2 * len(os.sched_getaffinity(0)), "collectives")
    outcomes += [
        _share(f"{_label(what)}, two ranks per core: our time / gloo's", times, "gloo", 1)
        for what, times in crowded.items()
    ]
    return outcomes


def _share(name: str, times: Times, other: str, bound: float) -> Outcome:
    return Outcome(name, median_ratio(times["mpi"], times[other]), bound, "", _details(times, other))


def _details(times: Times, other: str) -> str:
    return ", ".join(f"{name} {1e3 * statistics.median(times[name]):.3g} ms" for name in ("mpi", other))


def _label(what: str) -> str:
    if what in _LABELS:
        return _LABELS[what]
    operation, size = what.split()
    return f"{operation}, {int(size) // 1000} KB" if int(size) < 1_000_000 else f"{operation}, {int(size) // 10**6} MB"


def _ranks(number: int, what: str, *options: str) -> dict[str, Times]:
    """Return the seconds of each way, block by block, that the ranks' program measured."""
    prefix = stacks.install("pytorch")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "measured.json"
        start = [prefix / "bin" / "mpiexec", *options, "-n", str(number), prefix / "bin" / "python"]
        environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"}
        command = [*map(str, start), "-m", "benchmarks.torch_distributed_ranks", what, str(file)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{what} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        print(f"{what}, {number} ranks: {file.read_text()}", file=sys.stderr)
        measured: dict[str, Times] = json.loads(file.read_text())
        return measured
