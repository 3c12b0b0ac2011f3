"""mpirun (Open MPI): hosts, mapping, binding, and the variables that it is told to pass on."""

from __future__ import annotations

from dataclasses import replace

from hidl_cli.launch.launchers.mpirun import Mpirun
from tests.launch.launchers.asking import PROGRAM, placement, request

START = ("/opt/mpi/bin/mpirun", "-np", "8")
HOSTS = ("--hostfile", "steps/1/hosts")
BOUND = ("--map-by", "ppr:4:node:PE=8", "--bind-to", "core")


def test_the_whole_command() -> None:
    assert Mpirun().launch(request("openmpi")).argv == (*START, *HOSTS, *BOUND, *PROGRAM)


def test_on_one_host_there_are_as_many_slots_as_ranks() -> None:
    launch = Mpirun().launch(request("openmpi", placement(1), on_one_host=True))
    assert launch.argv == ("/opt/mpi/bin/mpirun", "-np", "4", "--host", "localhost:4", *BOUND, *PROGRAM)


def test_through_ssh_it_uses_no_scheduler() -> None:
    assert Mpirun().launch(request("openmpi", through_ssh=True)).environment["PRTE_MCA_plm"] == "ssh"


def test_on_one_host_it_uses_no_scheduler() -> None:
    assert Mpirun().launch(request("openmpi", on_one_host=True)).environment["PRTE_MCA_ras"].startswith("^slurm")
    assert "PRTE_MCA_ras" not in Mpirun().launch(request("openmpi")).environment


def test_its_daemons_get_the_environment_even_if_the_job_exports_none() -> None:
    assert Mpirun().launch(request("openmpi")).environment == {
        "SLURM_EXPORT_ENV": "ALL",
        "SLURM_CPU_BIND": "none",
        "SLURM_MPI_TYPE": "none",
    }


def test_ranks_that_share_cores_oversubscribe_the_node() -> None:
    launch = Mpirun().launch(request("openmpi", placement(bind=False)))
    assert launch.argv[5:9] == ("--map-by", "ppr:4:node:OVERSUBSCRIBE", "--bind-to", "none")


def test_a_rank_that_has_its_whole_node_is_not_bound() -> None:
    where = replace(placement(per_node=1, threads=144), fills_node=True)
    launch = Mpirun().launch(request("openmpi", where))
    assert launch.argv[5:9] == ("--map-by", "ppr:1:node", "--bind-to", "none")


def test_the_host_file_says_how_many_slots_a_host_has() -> None:
    assert Mpirun().launch(request("openmpi")).host_line.format(host="c1") == "c1 slots=4"


def test_variables_are_passed_on_by_name() -> None:
    launch = Mpirun().launch(request("openmpi", environment={"A": "a b", "B": ""}))
    assert launch.argv[9:13] == ("-x", "A", "-x", "B")


def test_variables_of_the_script_are_passed_on_if_set() -> None:
    launch = Mpirun().launch(request("openmpi", environment={"A": "1"}, forward=("PATH", "A")))
    assert (launch.argv[9:], launch.forwarded, launch.forward_option) == (("-x", "A"), ("PATH",), "-x")
    assert launch.rest == PROGRAM
