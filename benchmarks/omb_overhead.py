"""What Python adds to a message: our ``latency`` against a C ping-pong, over one MPI, in shared memory, on pinned ranks."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.measure import HIDL, Outcome, in_turn, median_ratio, private_environment

REPOSITORY = Path(__file__).parent.parent
SOURCE = Path(__file__).with_name("pingpong.c")
LARGE = 1 << 20
RUNS = 9


def measure() -> list[Outcome]:
    """Microseconds that Python adds one way at 8 B, and the ratio at 1 MB; the parts are in the details."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        env = private_environment(root) | {"PYTHONPATH": str(REPOSITORY)}
        installed = subprocess.run([HIDL, "install", "mpi", "--json"], env=env, capture_output=True, check=True)
        prefix = Path(json.loads(installed.stdout)["installations"][0]["prefix"])
        program, library = root / "pingpong", root / "libpingpong.so"
        _compile(prefix, env, program)
        _compile(prefix, env, library, "-shared", "-fPIC")

        def c(size: int, iterations: int) -> Callable[[], float]:
            words = [str(program), str(size), str(iterations), str(iterations // 10)]
            return lambda: float(_on_two_ranks(prefix, env, words))

        def python(size: int, iterations: int) -> Callable[[], float]:
            table = root / "table.json"
            counts = ["-m", f"{size}:{size}", "-i", str(iterations), "-x", str(iterations // 10)]
            words = [str(prefix / "bin" / "python"), "-m", "hidl_workloads.omb", "latency", *counts, f"--json={table}"]

            def run() -> float:
                _on_two_ranks(prefix, env, words)
                return float(json.loads(table.read_text())["benchmarks"][0]["tables"][0]["rows"][0]["Avg Latency(us)"])

            return run

        ours, theirs = in_turn(python(8, 30_000), c(8, 30_000), runs=RUNS)
        ours_large, theirs_large = in_turn(python(LARGE, 2_000), c(LARGE, 2_000), runs=RUNS)
        words = [str(prefix / "bin" / "python"), str(Path(__file__).with_name("omb_parts.py")), str(library)]
        parts = json.loads(_on_two_ranks(prefix, env, words))
    added = statistics.median(one - other for one, other in zip(ours, theirs, strict=True))
    ratio = median_ratio(ours_large, theirs_large)
    in_one_process = parts["Python, 8 B"] - parts["C, 8 B"]
    return [
        Outcome("omb latency, 8 B, added to C", added, 0.3, "us", _against(ours, theirs)),
        Outcome("omb latency, 1 MB, added to C", 100 * (ratio - 1), 1, "%", _against(ours_large, theirs_large)),
        Outcome("the same in one process, 8 B", in_one_process, 0.3, "us", _told(parts)),
        Outcome("the same in one process, 1 MB", 100 * (parts["Python, 1 MB"] / parts["C, 1 MB"] - 1), 1, "%"),
    ]


def _compile(prefix: Path, env: Mapping[str, str], target: Path, *words: str) -> None:
    command = [str(prefix / "bin" / "mpicc"), "-O2", *words, "-o", str(target), str(SOURCE)]
    subprocess.run([*command, f"-Wl,-rpath,{prefix / 'lib'}"], env=env, check=True)


def _on_two_ranks(prefix: Path, env: Mapping[str, str], words: list[str]) -> str:
    """Run ``words`` on two ranks, each bound to a core of its own; returns what they print."""
    command = [str(prefix / "bin" / "mpiexec"), "-n", "2", "-bind-to", "core", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def _against(ours: list[float], theirs: list[float]) -> str:
    return f"{statistics.median(ours):.3f} us against {statistics.median(theirs):.3f} us"


def _told(parts: Mapping[str, float]) -> str:
    return "; ".join(f"{name} {microseconds:.3f}" for name, microseconds in parts.items())
