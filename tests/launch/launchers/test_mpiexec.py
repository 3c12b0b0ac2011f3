"""mpiexec (Hydra): hosts, binding, and what Intel MPI does in another way."""

from __future__ import annotations

from hidl_cli.launch.launchers.mpiexec import Mpiexec
from tests.launch.launchers.asking import PROGRAM, placement, request

START = ("/opt/mpi/bin/mpiexec", "-n", "8")
HOSTS = ("-f", "steps/1/hosts", "-ppn", "4")


def test_the_whole_command() -> None:
    assert Mpiexec().launch(request("mpich")).argv == (*START, *HOSTS, "-bind-to", "core:8", *PROGRAM)


def test_on_one_host_it_uses_no_scheduler() -> None:
    launch = Mpiexec().launch(request("mpich", on_one_host=True))
    assert launch.argv == (*START, "-launcher", "fork", "-rmk", "user", "-bind-to", "core:8", *PROGRAM)


def test_on_one_host_mpich_opens_no_network_interface() -> None:
    launch = Mpiexec().launch(request("mpich", on_one_host=True))
    assert launch.environment == {"UCX_TLS": "^tcp"}
    for other in (
        request("mpich"),
        request("intel-mpi", on_one_host=True),
        request("mpich", on_one_host=True, environment={"UCX_TLS": "all"}),
    ):
        assert "UCX_TLS" not in Mpiexec().launch(other).environment


def test_through_ssh_it_asks_no_scheduler_for_hosts() -> None:
    launch = Mpiexec().launch(request("mpich", through_ssh=True))
    assert launch.argv == (*START, *HOSTS, "-launcher", "ssh", "-bind-to", "core:8", *PROGRAM)
    assert Mpiexec().launch(request("intel-mpi", through_ssh=True)).argv == (
        *START,
        *HOSTS,
        "-bootstrap",
        "ssh",
        *PROGRAM,
    )


def test_ranks_that_share_cores_are_not_bound() -> None:
    launch = Mpiexec().launch(request("mpich", placement(bind=False)))
    assert launch.argv == (*START, *HOSTS, "-bind-to", "none", *PROGRAM)


def test_a_line_of_the_host_file_is_a_host() -> None:
    assert Mpiexec().launch(request("mpich")).host_line == "{host}"


def test_it_exports_the_whole_environment() -> None:
    assert Mpiexec().launch(request("mpich", forward=("PATH",), environment={"N": "1"})).forwarded == ()


def test_intel_mpi_binds_by_its_variables_and_keeps_to_ppn() -> None:
    launch = Mpiexec().launch(request("intel-mpi"))
    assert launch.argv == (*START, *HOSTS, *PROGRAM)
    assert launch.environment == {
        "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0",
        "I_MPI_PIN": "1",
        "I_MPI_PIN_CELL": "core",
        "I_MPI_PIN_DOMAIN": "8:compact",
        "SLURM_CPU_BIND": "none",
        "SLURM_MPI_TYPE": "none",
    }


def test_intel_mpi_does_not_bind_ranks_that_share_cores() -> None:
    assert Mpiexec().launch(request("intel-mpi", placement(bind=False))).environment["I_MPI_PIN"] == "0"


def test_tuning_wins() -> None:
    launch = Mpiexec().launch(request("intel-mpi", environment={"I_MPI_PIN_DOMAIN": "socket"}))
    assert "I_MPI_PIN_DOMAIN" not in launch.environment
