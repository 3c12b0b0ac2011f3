"""ibrun: no hosts, no placement but the number of ranks."""

from __future__ import annotations

from hidl_cli.launch.launchers.ibrun import Ibrun
from tests.launch.launchers.asking import PROGRAM, request


def test_the_whole_command() -> None:
    assert Ibrun().launch(request("mvapich2")).argv == ("ibrun", "-n", "8", "-o", "0", *PROGRAM)


def test_no_host_file_and_no_host_is_named() -> None:
    assert not [word for word in Ibrun().launch(request("intel-mpi", forward=("PATH",))).words if "host" in word]


def test_the_library_binds_as_the_placement_says() -> None:
    assert Ibrun().launch(request("mvapich2")).environment["MV2_THREADS_PER_PROCESS"] == "8"
    assert Ibrun().launch(request("intel-mpi")).environment["I_MPI_PIN_DOMAIN"] == "8:compact"
    assert Ibrun().launch(request("openmpi")).environment == {
        "MY_OPENMPI_OPTIONS": "--map-by ppr:4:node:PE=8 --bind-to core"
    }


def test_task_affinity_replaces_the_librarys_binding() -> None:
    mpi = {"launcher_arguments": {"ibrun": ("task_affinity",)}}
    launch = Ibrun().launch(request("mvapich2", mpi=mpi))
    assert launch.argv == ("ibrun", "-n", "8", "-o", "0", "task_affinity", *PROGRAM)
    assert launch.environment == {"MV2_ENABLE_AFFINITY": "0"}
    assert Ibrun().launch(request("intel-mpi", mpi=mpi)).environment == {}
    assert Ibrun().launch(request("openmpi", mpi=mpi)).environment == {}


def test_options_of_the_user_win() -> None:
    chosen = {"MY_OPENMPI_OPTIONS": "--bind-to none"}
    assert "MY_OPENMPI_OPTIONS" not in Ibrun().launch(request("openmpi", environment=chosen)).environment
