"""PALS and ``flux run`` start real ranks of MPICH within jobs, on stand-ins, and on a real Flux where there is one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hidl_twin.batch.system import System
from hidl_twin.flux.system import Flux
from hidl_twin.pbs.system import Pbs

from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Request
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Library
from tests.cluster.standin import StandIn
from tests.waiting import patience

PROGRAM = "from mpi4py import MPI; import os; w = MPI.COMM_WORLD; print(w.rank, 'of', w.size, os.environ['OF_JOB'])"
ONE_NODE = Placement(1, 2, 2, 1, bind=True)
SHARED = Placement(1, 2 * (os.cpu_count() or 1), 2 * (os.cpu_count() or 1), 1, bind=False)
_FLUX = shutil.which(os.environ.get("HIDL_TEST_FLUX", "flux"))


def argv(name: str, prefix: Path, placement: Placement = ONE_NODE) -> list[str]:
    """The launcher's command for PROGRAM, whose hosts are in the file ``hosts``."""
    program = (str(prefix / "bin" / "python"), "-c", PROGRAM)
    library = Library("mine", "mpich", prefix=str(prefix))
    return list(launcher(name).launch(Request(placement, program, library)).argv)


@pytest.mark.parametrize(("name", "system", "submit"), [("pals", Pbs(), "qsub"), ("flux", Flux(), "flux batch -n 2")])
def test_ranks_form_one_world_with_the_environment_of_the_job(
    name: str, system: System, submit: str, stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix = stack_prefix("mpi")
    standin = StandIn(system, tmp_path / name, mpi=str(prefix))
    standin.set(hosts={"localhost": {}})
    try:
        line = shlex.join(argv(name, prefix))
        out = tmp_path / "out"
        programs = f"{standin.spool / system.launcher_place}:{standin.spool / 'bin'}"
        script = f"export OF_JOB=yes PATH={programs}:$PATH\ncd {tmp_path}\necho localhost > hosts\n{line} > {out} 2>&1"
        submitted = standin(*submit.split(), standin.script(script))
        assert submitted.returncode == 0, submitted.stderr
        standin.wait()
        assert sorted(line for line in out.read_text().splitlines() if " of " in line and "stand-in" not in line) == [
            "0 of 2 yes",
            "1 of 2 yes",
        ]
    finally:
        standin.end()


@pytest.mark.skipif(_FLUX is None, reason="FLUX-CORE IS NOT HERE: put its `flux` on PATH, or name it in HIDL_TEST_FLUX")
@pytest.mark.parametrize("placement", [ONE_NODE, SHARED], ids=["bound", "sharing cores"])
def test_a_real_flux_starts_them(placement: Placement, stack_prefix: Callable[[str], Path]) -> None:
    assert _FLUX is not None
    words = argv("flux", stack_prefix("mpi"), placement)
    done = subprocess.run(
        [_FLUX, "start", _FLUX, *words[1:]],
        env={**os.environ, "OF_JOB": "yes"},
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    expected = [f"{rank} of {placement.ranks} yes" for rank in range(placement.ranks)]
    assert sorted(done.stdout.splitlines()) == sorted(expected), done.stderr
