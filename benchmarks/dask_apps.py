"""Dask's applications over ``mpi://`` against ``tcp://``: 4 ranks (2 workers), each protocol in turn."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.measure import HIDL, Outcome, median_ratio, private_environment

_RANKS, _ROUNDS = 4, 4
_NOISE = 1.1  # a ratio this near to 1 is none on a machine that others use
_PROGRAM = Path(__file__).with_name("dask_apps_ranks.py")


def measure() -> list[Outcome]:
    """The ratio of seconds, mpi to tcp, of each case: the median over the rounds, pair by pair."""
    with tempfile.TemporaryDirectory() as name:
        env = private_environment(Path(name)) | {"DASK_LOGGING__DISTRIBUTED": "error", "OMP_NUM_THREADS": "1"}
        installed = subprocess.run(
            [HIDL, "install", "dask-xgboost", "--json"], env=env, capture_output=True, check=True
        )
        (installation,) = json.loads(installed.stdout)["installations"]
        prefix = Path(installation["prefix"])
        rounds = [(_launch(prefix, "tcp", env), _launch(prefix, "mpi", env)) for _ in range(_ROUNDS)]
    outcomes = []
    for case in rounds[0][0]:
        tcp, mpi = ([each[side][case] for each in rounds] for side in (0, 1))
        details = f"{median(mpi) * 1e3:.3g} ms against {median(tcp) * 1e3:.3g} ms"
        outcomes.append(Outcome(f"{case}: mpi / tcp", median_ratio(mpi, tcp), _NOISE, "", details))
    return outcomes


def _launch(prefix: Path, protocol: str, env: dict[str, str]) -> dict[str, float]:
    """The seconds of each case over one protocol."""
    command = [prefix / "bin" / "mpiexec", "-n", str(_RANKS), prefix / "bin" / "python", _PROGRAM, protocol]
    variables = {name: value for name, value in env.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{os.fspath(_PROGRAM)} {protocol} ended with {done.returncode}:\n{done.stderr}")
    return dict(json.loads(lines[0]))
