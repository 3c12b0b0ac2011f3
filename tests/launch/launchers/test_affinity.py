"""What keeps a library's own binding from undoing the placement."""

from __future__ import annotations

import pytest

from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import intel_binding, mvapich2_binding
from hidl_cli.mpi import Family
from tests.launch.launchers.asking import placement, request


def test_mvapich2_gives_each_rank_as_many_cores_as_it_has_threads() -> None:
    assert mvapich2_binding(request("mvapich2"), launcher_binds=False) == {
        "MV2_CPU_BINDING_POLICY": "hybrid",
        "MV2_THREADS_PER_PROCESS": "8",
    }


def test_its_binding_is_off_if_the_launcher_binds() -> None:
    assert mvapich2_binding(request("mvapich2-gdr"), launcher_binds=True) == {"MV2_ENABLE_AFFINITY": "0"}


def test_its_binding_is_off_if_the_node_has_too_few_cores() -> None:
    crowded = request("mvapich2", placement(bind=False))
    assert mvapich2_binding(crowded, launcher_binds=False) == {"MV2_ENABLE_AFFINITY": "0"}


@pytest.mark.parametrize("name", ["MV2_CPU_MAPPING", "MV2_ENABLE_AFFINITY", "MV2_HYBRID_BINDING_POLICY"])
def test_tuning_that_binds_wins(name: str) -> None:
    assert mvapich2_binding(request("mvapich2", environment={name: "x"}), launcher_binds=True) == {}


@pytest.mark.parametrize("family", ["mpich", "mvapich", "mvapich-plus", "openmpi", "cray-mpich"])
def test_other_libraries_read_none_of_these(family: Family) -> None:
    assert mvapich2_binding(request(family), launcher_binds=True) == {}
    assert intel_binding(request(family)) == {}


@pytest.mark.parametrize("name", ["srun", "mpiexec", "jsrun"])
def test_launchers_that_bind_switch_it_off(name: str) -> None:
    assert launcher(name).launch(request("mvapich2")).environment["MV2_ENABLE_AFFINITY"] == "0"
