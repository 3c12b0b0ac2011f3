"""Overhead of the recorder mpitraffic per MPI call: one process alternates between recorded and direct calls."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.measure import HIDL, SMALL, Outcome, private_environment

_SOURCE = Path(__file__).with_name("recorded.c")
_LIBRARY = Path(__file__).parents[1] / "libs" / "mpitraffic"
BLOCKS, ROUNDS = (5, 1) if SMALL else (400, 5)
#: Calls of each rank that follow one another in a round trip.
_IN_ROUND_TRIP = 4


def measure() -> list[Outcome]:
    """Return nanoseconds added to a call, and the ratio of an allreduce of 4 KB."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        env = private_environment(root) | {"PYTHONPATH": str(_LIBRARY)}
        installed = subprocess.run([HIDL, "install", "mpi", "--json"], env=env, capture_output=True, check=True)
        prefix = Path(json.loads(installed.stdout)["installations"][0]["prefix"])
        program, recorder, compiler = root / "recorded", root / "recorder.so", prefix / "bin" / "mpicc"
        subprocess.run([compiler, "-O2", _SOURCE, "-o", program, f"-Wl,-rpath,{prefix / 'lib'}"], env=env, check=True)
        build = [sys.executable, "-m", "mpitraffic", "build", recorder, "--mpicc", compiler]
        subprocess.run(build, env=env, stdout=subprocess.DEVNULL, check=True)
        rounds = [_round(prefix, program, recorder, root / f"profile-{number}", env) for number in range(ROUNDS)]
    return [
        _added("a send to MPI_PROC_NULL, added by the recorder", [each["to_nobody"] for each in rounds], 1),
        _added("8 B there and back, added to a call", [each["ping_pong"] for each in rounds], _IN_ROUND_TRIP),
        Outcome(
            "allreduce of 4 KB, recorded / not",
            median(recorded / plain for plain, recorded in (each["allreduce"] for each in rounds)),
            1.03,
            "",
            f"{median(each['allreduce'][0] for each in rounds):.2f} us",
        ),
    ]


def _added(name: str, pairs: list[tuple[float, float]], calls: int) -> Outcome:
    added = median(1000 * (recorded - plain) / calls for plain, recorded in pairs)
    return Outcome(name, added, 100, "ns", f"{median(plain for plain, _ in pairs):.3f} us without")


def _round(
    prefix: Path, program: Path, recorder: Path, profile: Path, env: dict[str, str]
) -> dict[str, tuple[float, float]]:
    variables = env | {"MPITRAFFIC_DIRECTORY": str(profile)}
    launch = [prefix / "bin" / "mpiexec", "-n", "2", "-bind-to", "core", "env", f"LD_PRELOAD={recorder}"]
    done = subprocess.run([*launch, program, str(BLOCKS)], env=variables, capture_output=True, text=True, check=True)
    if len(list(profile.glob("*.mpitraffic"))) != 2:
        raise RuntimeError(f"nothing was recorded: {done.stderr}")
    rows = (line.split() for line in done.stdout.splitlines())
    return {name: (float(plain), float(recorded)) for name, plain, recorded in rows}
