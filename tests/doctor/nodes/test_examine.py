"""``hidl doctor --nodes`` on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.doctor import nodes
from hidl_cli.doctor.nodes import examine_nodes
from hidl_cli.errors import UsageError
from hidl_cli.site.load import load_site
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.site.schema import Mpi
from hidl_cli.stack import installation


@pytest.fixture(autouse=True)
def own_state(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's is read or written."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def mpi(stack_prefix: Callable[[str], Path]) -> installation.Installation:
    found = installation.at(stack_prefix("mpi"))
    assert found is not None
    return found


def test_a_healthy_machine_has_no_finding_above_info_and_leaves_nothing(
    mpi: installation.Installation, tmp_path: Path
) -> None:
    examined = examine_nodes(load_site("local"), mpi, 1)
    assert {finding.severity for finding in examined.findings} <= {"info"}
    assert examined.unknown == ()
    assert list(tmp_path.glob("state/hidl/doctor/*")) == []


def test_open_mpi_is_started_by_its_own_mpirun(stack_prefix: Callable[[str], Path]) -> None:
    examined = examine_nodes(load_site("local"), installation.at(stack_prefix("openmpi")), 1)
    assert (examined.errors, examined.unknown) == ((), ())


def test_a_launcher_that_hangs_is_ended_and_reported(
    mpi: installation.Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "PATIENCE_SECONDS", 1)
    mpiexec = tmp_path / "broken" / "bin" / "mpiexec"
    mpiexec.parent.mkdir(parents=True)
    mpiexec.write_text("#!/bin/sh\necho waiting for the others >&2\nexec sleep 60\n")
    mpiexec.chmod(0o755)
    site = load_site("local")
    broken = Mpi.model_validate({"family": "mpich", "prefix": str(tmp_path / "broken")})
    site = site.model_copy(update={"mpi": {"broken": broken}})

    (finding,) = examine_nodes(site, mpi, 1, mpi="broken").errors

    assert (finding.rule, finding.where) == ("HD052", "mpiexec")
    assert "timed out" in finding.seen
    assert "waiting for the others" in finding.seen


def test_an_allocation_of_fewer_nodes_is_refused() -> None:
    host = ThisHost(environment={"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "PATH": ""})
    with pytest.raises(UsageError, match="this allocation has 2 node"):
        examine_nodes(load_site("test-cluster"), None, 4, host=host)
