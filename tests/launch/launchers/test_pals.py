"""PALS: the mpiexec of HPE Cray systems, as ALCF's user guides for Aurora, Polaris and Crux call it."""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import Gpus
from hidl_cli.launch.launchers.pals import Pals
from tests.launch.launchers.asking import PROGRAM, placement, request


def test_the_whole_command() -> None:
    assert Pals().launch(request("cray-mpich")).argv == (
        "mpiexec",
        "-n",
        "8",
        "--ppn",
        "4",
        "--hostfile",
        "steps/1/hosts",
        "--depth",
        "8",
        "--cpu-bind",
        "depth",
        "--envall",
        *PROGRAM,
    )


def test_it_is_the_systems_mpiexec_and_not_the_librarys() -> None:
    assert Pals().launch(request("mpich", mpi={"prefix": "/opt/mpi"})).argv[0] == "mpiexec"


def test_open_mpi_is_started_by_pmix() -> None:
    words = Pals().launch(request("openmpi")).argv
    assert words[words.index("--pmi") + 1] == "pmix"
    assert "--pmi" not in Pals().launch(request("cray-mpich")).argv


def test_ranks_that_share_cores_are_not_bound() -> None:
    words = Pals().launch(request("cray-mpich", placement(bind=False))).argv
    assert words[words.index("--cpu-bind") + 1] == "none"
    assert "--depth" not in words


def test_all_ranks_of_a_node_see_all_its_gpus() -> None:
    with_gpus = Pals().launch(request("cray-mpich", gpus=Gpus(4, 1))).argv
    assert not [word for word in with_gpus if word.startswith("--gpu-bind")]


def test_a_site_can_bind_gpus_by_an_argument() -> None:
    mpi = {"launcher_arguments": {"pals": ("--gpu-bind", "list:0.0:0.1:1.0:1.1")}}
    words = Pals().launch(request("mpich", mpi=mpi, gpus=Gpus(4, 1))).argv
    assert words[words.index("--gpu-bind") + 1] == "list:0.0:0.1:1.0:1.1"


def test_copies_of_a_step_are_distinguished_by_their_host_files() -> None:
    assert Pals().launch(request("cray-mpich")).host_option == ""
