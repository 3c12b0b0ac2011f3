"""The stand-in for mpirun_rsh does what MVAPICH2 2.3.7's was seen to do, with real ranks of MPICH."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hidl_twin
import pytest

from tests.cluster.cluster import LivingCluster
from tests.waiting import patience, until

pytestmark = pytest.mark.real

STANDIN = Path(hidl_twin.__file__).parent / "standins" / "mpirun_rsh"
HERE = socket.gethostname()
SELF = "mpirun_rsh: this is a stand-in for MVAPICH2 2.3.7's, over MPICH (hidl cluster up)"
WORLD = """
from mpi4py import MPI
world = MPI.COMM_WORLD
told = world.gather((world.rank, MPI.Get_processor_name(), world.allreduce(world.rank)))
if world.rank == 0:
    print(world.size, told)
"""


def mpirun_rsh(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [sys.executable, str(STANDIN), *words],
        env=environment | {"MV2_ENABLE_AFFINITY": "0"} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )


@pytest.fixture
def hostfile(tmp_path: Path) -> Callable[[str], str]:
    """Writes a host file; HOST stands for this machine."""

    def write(text: str) -> str:
        file = tmp_path / "hosts"
        file.write_text(text.replace("HOST", HERE))
        return str(file)

    return write


def echoed(*words: str, program: tuple[str, ...] = (), **variables: str) -> str:
    """What one rank that prints the variable N prints."""
    program = program or ("sh", "-c", 'printf "<%s>" "$N"')
    done = mpirun_rsh("-np", "1", *words, program[0], *program[1:], **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_makes_one_world_of_mpich(stack_prefix: Callable[[str], Path], hostfile: Callable[[str], str]) -> None:
    python = str(stack_prefix("mpi") / "bin/python")
    done = mpirun_rsh("-np", "2", "-hostfile", hostfile("HOST:2\n"), python, "-c", WORLD.replace("'", '"'))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"2 [(0, '{HERE}', 1), (1, '{HERE}', 1)]"


def test_its_first_line_names_it() -> None:
    assert mpirun_rsh("-np", "1", HERE, "true").stderr == f"{SELF}\n"


@pytest.mark.parametrize("form", ["-np 2 -hostfile FILE", "--np=2 --hostfile=FILE", "-hostf FILE --np 2"])
def test_options_are_taken_as_getopt_long_only_takes_them(form: str, hostfile: Callable[[str], str]) -> None:
    words = form.replace("FILE", hostfile("# two\nHOST:2:mlx5_0:1  # ranks\n")).split()
    assert mpirun_rsh(*words, "sh", "-c", "echo x").stdout == "x\nx\n"


def test_the_ranks_are_reported_their_places(hostfile: Callable[[str], str]) -> None:
    names = ["MV2_COMM_WORLD_" + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    told = " ".join(f"${name}" for name in (*names, "MV2_NODE_ID", "MPIRUN_RSH_LAUNCH"))
    done = mpirun_rsh("-np", "2", "-hostfile", hostfile("HOST\nHOST\n"), "sh", "-c", f"echo {told}")
    assert sorted(done.stdout.splitlines()) == ["0 2 0 2 0 1", "1 2 1 2 0 1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-genv", "A", "1"], "unrecognized option '-genv'"),
        (["-np", "0", HERE, "true"], "usage: mpirun_rsh"),
        (["-np", "1", "-launcher", "pdsh", HERE, "true"], "Invalid launcher selected"),
        (["-np", "1", HERE, "A=1"], "Incorrect number of arguments"),
        (["-np", "1", "-hostfile", "/nowhere", "true"], "Can't open hostfile /nowhere"),
        (["-np", "3", "sh", "-c"], "hostnames must be specified on command line"),
        (["-np", "1", "-config", "f"], "not supported by this stand-in"),
    ],
)
def test_a_command_line_that_cannot_be_ends_with_status_1(words: list[str], said: str, tmp_path: Path) -> None:
    done = mpirun_rsh(*words, HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_slots_are_a_syntax_error_in_a_host_file(hostfile: Callable[[str], str]) -> None:
    done = mpirun_rsh("-np", "1", "-hostfile", hostfile("HOST slots=2\n"), "true")
    assert (done.returncode, "syntax error" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("word", "arrives"), [("N='a b'", "<a b>"), ("N='x;y'", "<x;y>"), ("N='$HOME'", "<$HOME>"), ("N=$HOME", "</h>")]
)
def test_values_are_bare_in_a_shell_so_quotes_in_them_count(word: str, arrives: str) -> None:
    assert echoed(HERE, word, HOME="/h") == arrives


def test_a_bare_semicolon_ends_the_line_there() -> None:
    done = mpirun_rsh("-np", "1", HERE, "N=x;touch-nothing", "true")
    assert done.returncode == 1
    assert "touch-nothing: command not found" in done.stderr


def test_of_two_values_for_one_name_the_first_holds() -> None:
    assert echoed(HERE, "N=1", "N=2") == "<1>"


def test_a_value_after_the_program_is_its_argument() -> None:
    assert echoed(HERE, program=("printf", "<%s>", "A=1", "it", "a b", "$HOME")) == "<A=1><it><a b><$HOME>"


def test_with_export_the_command_line_holds_and_with_export_all_the_environment() -> None:
    assert echoed("-export", HERE, "N=line", N="environment") == "<line>"
    assert echoed("-export-all", HERE, "N=line", N="environment") == "<environment>"


def test_the_ranks_run_where_it_was_called() -> None:
    assert echoed(HERE, program=("pwd",)).strip() == os.environ.get("PWD", str(Path.cwd()))


def test_the_status_of_a_rank_is_reported_on_stderr() -> None:
    done = mpirun_rsh("-np", "2", HERE, HERE, "sh", "-c", '[ "$MV2_COMM_WORLD_RANK" = 0 ] && sleep 60; exit 7')
    assert done.returncode == 1
    assert f"[{HERE}:mpispawn_0][child_handler] MPI process (rank: 1, pid: " in done.stderr
    assert done.stderr.endswith(") exited with status 7\n")


def test_so_is_the_signal_that_ended_one() -> None:
    done = mpirun_rsh("-np", "1", HERE, "sh", "-c", "kill -SEGV $$")
    assert (done.returncode, "terminated with signal 11 -> abort job" in done.stderr) == (1, True)


def test_an_abort_ends_all_with_its_status(stack_prefix: Callable[[str], Path]) -> None:
    program = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.rank and w.Abort(9); w.Barrier()"
    done = mpirun_rsh("-np", "2", HERE, HERE, str(stack_prefix("mpi") / "bin/python"), "-c", program)
    assert (done.returncode, "(rank: 1, " in done.stderr, "exited with status 9\n" in done.stderr) == (1, True, True)


def test_time_that_runs_out_ends_all() -> None:
    done = mpirun_rsh("-np", "1", HERE, "sleep", "60", MPIEXEC_TIMEOUT="1")
    assert (done.returncode, done.stderr.splitlines()[1:]) == (1, ["Timeout [TIMEOUT = 1 seconds]."])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_ranks(number: signal.Signals, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    command = [sys.executable, str(STANDIN), "-np", "1", HERE, "sh", "-c", f"echo $$ > {told}; exec sleep 60"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: told.exists() and told.read_text().strip() != "")
        process.send_signal(number)
        _, stderr = process.communicate(timeout=patience(30))
    until(lambda: not Path(f"/proc/{told.read_text().strip()}").exists())
    if number != signal.SIGKILL:
        assert process.returncode == 1
        assert f"Caught signal {int(number)}, killing job" in stderr


def test_show_starts_nothing(tmp_path: Path) -> None:
    done = mpirun_rsh("-show", "-np", "2", HERE, "elsewhere", "A=1 2", "touch", str(tmp_path / "made"))
    assert done.returncode == 0
    assert "/bin/bash -c cd " in done.stdout
    assert "/usr/bin/ssh -q elsewhere cd " in done.stdout
    assert "MPISPAWN_GENERIC_NAME_0=A MPISPAWN_GENERIC_VALUE_0=1 2 " in done.stdout
    assert not (tmp_path / "made").exists()


def test_across_nodes_nothing_but_what_is_named_is_sent(
    cluster: LivingCluster, stack_prefix: Callable[[str], Path]
) -> None:
    python = str(stack_prefix("mpi") / "bin/python")
    command = ["env", "N=secret", "LD_LIBRARY_PATH=/l", sys.executable, str(STANDIN), "-np", "2", "node1", "node2"]
    told = cluster.on("node1", *command, "M=m", "sh", "-c", 'echo "$MV2_NODE_ID $N $M $LD_LIBRARY_PATH"')
    # The shell on its own host is a child of mpirun_rsh, and has all of its environment.
    assert sorted(told.splitlines()) == ["0 secret m /l", "1  m /l"]
    world = cluster.on("node1", *command[3:], python, "-c", WORLD)
    assert world.strip() == "2 [(0, 'node1', 1), (1, 'node2', 1)]"
