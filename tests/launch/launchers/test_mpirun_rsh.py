"""mpirun_rsh: variables between hosts and program, quoted for a shell on another host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers.mpirun_rsh import MpirunRsh
from tests.launch.launchers.asking import placement, request

BINDING = ("MV2_CPU_BINDING_POLICY=hybrid", "MV2_THREADS_PER_PROCESS=8")
GDR = {
    "MV2_USE_CUDA": "1",
    "MV2_CPU_BINDING_POLICY": "hybrid",
    "MV2_HYBRID_BINDING_POLICY": "spread",
    "MV2_USE_RDMA_CM": "0",
    "MV2_GPUDIRECT_GDRCOPY_LIB": "/opt/gdrcopy/lib64/libgdrapi.so",
}


def test_hosts_then_variables_then_the_program() -> None:
    launch = MpirunRsh().launch(request("mvapich2"))
    assert launch.argv == ("/opt/mpi/bin/mpirun_rsh", "-np", "8", "-hostfile", "steps/1/hosts", *BINDING)
    assert launch.rest == ("python", "-m", "train", "--note=a b")


def test_tuning_of_mvapich2_gdr_is_passed_unchanged() -> None:
    launch = MpirunRsh().launch(request("mvapich2-gdr", environment=GDR))
    assert set(launch.argv[5:]) >= {f"{name}={value}" for name, value in GDR.items()}


def test_under_policy_hybrid_each_rank_gets_the_cores_of_the_placement() -> None:
    """Without the number, a preset of the policy alone left each rank one core for all of its threads."""
    asked = request("mvapich2-gdr", environment={"MV2_CPU_BINDING_POLICY": "hybrid"})
    assert f"MV2_THREADS_PER_PROCESS={asked.placement.threads_per_rank}" in MpirunRsh().launch(asked).argv


def test_another_policy_is_passed_unchanged() -> None:
    asked = request("mvapich2-gdr", environment={"MV2_CPU_BINDING_POLICY": "scatter"})
    assert not any(word.startswith("MV2_THREADS") for word in MpirunRsh().launch(asked).argv)


def test_without_a_prefix_it_is_called_by_name() -> None:
    assert MpirunRsh().launch(request("mvapich2", mpi={"prefix": None})).argv[0] == "mpirun_rsh"


def test_the_host_file_says_how_many_ranks_a_host_gets() -> None:
    assert MpirunRsh().launch(request("mvapich2")).host_line.format(host="c1") == "c1:4"


def test_a_last_node_that_is_not_full_has_fewer_ranks() -> None:
    assert MpirunRsh().launch(request("mvapich2", placement(ranks=7))).argv[1:3] == ("-np", "7")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("a b", "N='a b'"),
        ("x;y", "N='x;y'"),
        ("$HOME", "N='$HOME'"),
        ("it's", "N='it'\"'\"'s'"),
        ("two\nlines", "N='two\nlines'"),
        ("\u00e9", "N='\u00e9'"),
        ("", "N=''"),
        ("/plain/value:1", "N=/plain/value:1"),
    ],
)
def test_values_are_quoted_for_the_remote_shell(value: str, word: str) -> None:
    assert MpirunRsh().launch(request("mvapich2", environment={"N": value})).argv[-1] == word


def test_single_quotes_in_arguments_are_escaped() -> None:
    asked = replace(request("mvapich2"), program=("prog", "a b", "it's", "$HOME"))
    assert MpirunRsh().launch(asked).rest == ("prog", "a b", "it'\"'\"'s", "$HOME")


def test_a_program_with_an_equals_sign_is_not_a_variable() -> None:
    asked = replace(request("mvapich2"), program=("/a=b/prog", "x=y"))
    assert MpirunRsh().launch(asked).rest == ("/bin/sh", "-c", 'exec "$@"', "sh", "/a=b/prog", "x=y")


def test_variables_of_the_script_are_forwarded_unless_given() -> None:
    launch = MpirunRsh().launch(request("mvapich2", forward=("PATH", "N"), environment={"N": "1"}))
    assert launch.forwarded == ("PATH",)


def test_no_other_variable_is_sent() -> None:
    assert not [word for word in MpirunRsh().launch(request("mvapich2")).argv if word.startswith("-export")]


def test_the_ranks_status_is_read_from_stderr() -> None:
    assert MpirunRsh().launch(request("mvapich2")).status_on_stderr


@pytest.mark.parametrize(
    "arguments",
    [("-launcher", "srun"), ("--launcher=srun",), ("-fastssh",), ("-sg", "staff"), ("-config", "file"), ("-legacy",)],
)
def test_arguments_that_change_values_are_refused(arguments: tuple[str, ...]) -> None:
    mpi = {"launcher_arguments": {"mpirun_rsh": arguments}}
    with pytest.raises(InvalidInput, match="changes how variables and arguments"):
        MpirunRsh().launch(request("mvapich2", mpi=mpi))


def test_other_arguments_are_accepted() -> None:
    mpi = {"launcher_arguments": {"mpirun_rsh": ("-launcher", "rsh", "-export")}}
    assert MpirunRsh().launch(request("mvapich2", mpi=mpi)).argv[5:8] == ("-launcher", "rsh", "-export")
