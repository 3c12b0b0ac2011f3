"""What Python adds to a message: our ``latency`` against a C ping-pong over one MPI, in shared memory, pinned ranks."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measure import HIDL, Outcome, median_difference, median_ratio, private_environment

REPOSITORY = Path(__file__).parent.parent
SOURCE = Path(__file__).with_name("pingpong.c")
SMALL, CALLS, ROUNDS = 8, 30_000, 11


def measure() -> list[Outcome]:
    """Microseconds that Python adds one way at 8 B, and the share at 1 MB; the parts are in the details."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        env = private_environment(root) | {"PYTHONPATH": str(REPOSITORY), "HIDL_WORLD_SIZE": "2"}
        installed = subprocess.run([HIDL, "install", "mpi", "--json"], env=env, capture_output=True, check=True)
        prefix = Path(json.loads(installed.stdout)["installations"][0]["prefix"])
        program, library = root / "pingpong", root / "libpingpong.so"
        _compile(prefix, env, program)
        _compile(prefix, env, library, "-shared", "-fPIC")
        run = partial(_on_two_ranks, prefix, env)
        rounds = [
            (_ours(run, root), _theirs(run, program, "single"), _theirs(run, program, "multiple"))
            for _ in range(ROUNDS)
        ]
        parts = json.loads(run("python", str(Path(__file__).with_name("omb_parts.py")), str(library)))
    ours, theirs, locked = (list(column) for column in zip(*rounds, strict=True))
    programs = f"{median(ours):.3f} against {median(theirs):.3f} us; C with MPI_THREAD_MULTIPLE {median(locked):.3f} us"
    added = median_difference(ours, theirs)
    in_process = median_difference(parts["Python, 8 B"], parts["C, 8 B"])
    share = 100 * (median_ratio(parts["Python, 1 MB"], parts["C, 1 MB"]) - 1)
    as_cold = median_ratio(parts["Python, 1 MB"], parts["C, 1 MB, 128 lines"])
    told = "; ".join(f"{name} {median(microseconds):.3f}" for name, microseconds in parts.items())
    return [
        Outcome("omb latency, 8 B, added to C: programs", added, 0.3, "us", programs),
        Outcome("omb latency, 8 B, added to C: one process", in_process, 0.3, "us", told),
        Outcome("omb latency, 1 MB, added to C: one process", share, 1, "%"),
        Outcome("omb latency, 1 MB, to C that touches as much memory", as_cold, 1, ""),
    ]


Run = Callable[..., str]


def _ours(run: Run, root: Path) -> float:
    table = root / "table.json"
    counts = ["-m", f"{SMALL}:{SMALL}", "-i", str(CALLS), "-x", str(CALLS // 10)]
    module = ["-m", "hidl_workloads.single_threaded", "hidl_workloads.omb", "latency"]  # as `hidl run` starts it
    run("python", *module, *counts, "--buffer=bytearray", f"--json={table}")
    return float(json.loads(table.read_text())["benchmarks"][0]["tables"][0]["rows"][0]["Avg Latency(us)"])


def _theirs(run: Run, program: Path, thread_level: str) -> float:
    return float(run(str(program), str(SMALL), str(CALLS), str(CALLS // 10), thread_level))


def _compile(prefix: Path, env: Mapping[str, str], target: Path, *words: str) -> None:
    command = [str(prefix / "bin" / "mpicc"), "-O2", *words, "-o", str(target), str(SOURCE)]
    subprocess.run([*command, f"-Wl,-rpath,{prefix / 'lib'}"], env=env, check=True)


def _on_two_ranks(prefix: Path, env: Mapping[str, str], program: str, *words: str) -> str:
    """Run a program (of the prefix, where it is no path) on two ranks, each bound to a core; returns what it prints."""
    command = [str(prefix / "bin" / "mpiexec"), "-n", "2", "-bind-to", "core", str(prefix / "bin" / program), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
