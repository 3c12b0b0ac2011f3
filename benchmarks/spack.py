"""hidl's own share of an installation with Spack: all but Spack's processes, uv's and the verification's ranks.

Spack itself takes minutes, and none of them are hidl's: a small program stands at its place and notes how long it ran.
The verification is taken off by running the plan's own command again.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import HIDL, Outcome, private_environment, wall

_STAND_IN = Path(__file__).parent.parent / "tests" / "programs" / "spack_stand_in.py"
_RUNS = 5


def measure() -> list[Outcome]:
    """The share of a first installation, and the time of "nothing to do"."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        env = private_environment(root)
        wall([HIDL, "install", "mpi"], env=env)  # an MPICH for the machine, and full caches
        mpich = (root / "data" / "hidl" / "installations" / "local" / "mpi" / "current").resolve()
        spack = _stand_in(root / "spack")
        env |= {"HIDL_SPACK": str(spack), "SPACK_PYTHON": sys.executable, "LD_LIBRARY_PATH": str(mpich / "lib")}
        env |= {"PATH": os.pathsep.join((str(mpich / "bin"), env["PATH"]))}
        install = [HIDL, "install", "mpi", "--provider", "spack", "--prefix", str(root / "installed")]
        shares = [_share(install, env, root / "installed", spack) for _ in range(_RUNS)]
        again = [wall(install, env=env) for _ in range(_RUNS)]
    return [
        Outcome("hidl install --provider spack, hidl's own share", statistics.median(shares), 2.0, "s"),
        Outcome("hidl install --provider spack, nothing to do", statistics.median(again), 1.0, "s"),
    ]


def _share(install: list[str], env: dict[str, str], place: Path, spack: Path) -> float:
    """Seconds of one installation without those of the programs that it starts."""
    shutil.rmtree(place, ignore_errors=True)
    (spack / "seconds").unlink(missing_ok=True)
    planned = subprocess.run([*install, "--dry-run", "--json"], env=env, capture_output=True, check=True)
    (spack / "seconds").unlink(missing_ok=True)
    whole = wall(install, env=env)
    of_spack = sum(map(float, (spack / "seconds").read_text().split()))
    verify = json.loads(planned.stdout)["plans"][0]["steps"][-1]
    prefix = next((place / "local" / "mpi").glob("*/manifest.json")).parent
    argv = [
        word.replace(json.loads(planned.stdout)["plans"][0]["plan"]["prefix"], str(prefix)) for word in verify["argv"]
    ]
    return whole - of_spack - wall(argv, env=env | verify["variables"])


def _stand_in(root: Path) -> Path:
    """A root of Spack's form with the program that stands at its place."""
    (root / "bin").mkdir(parents=True)
    program = root / "bin" / "spack"
    program.write_text(f"#!{sys.executable}\n{_STAND_IN.read_text(encoding='utf-8')}", encoding="utf-8")
    program.chmod(0o755)
    version = root / "lib" / "spack" / "spack" / "__init__.py"
    version.parent.mkdir(parents=True)
    version.write_text('__version__ = "1.2.0"\n', encoding="utf-8")
    return root
