"""flux run: cores and GPUs of each rank, and what the job shell sets up, as flux-run(1) names them."""

from __future__ import annotations

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers.contract import Gpus
from hidl_cli.launch.launchers.flux import FluxRun
from hidl_cli.mpi import Family
from tests.launch.launchers.asking import PROGRAM, placement, request


def test_the_whole_command() -> None:
    words = ("-N", "2", "-n", "8", "-c", "8", "-o", "cpu-affinity=per-task", "-o", "exit-on-error")
    assert FluxRun().launch(request("mpich")).argv == ("flux", "run", *words, *PROGRAM)


def test_each_rank_gets_gpus_of_its_own() -> None:
    affinity = ("-o", "cpu-affinity=per-task", "-o", "gpu-affinity=per-task")
    words = ("-N", "2", "-n", "8", "-c", "8", "-g", "2", *affinity, "-o", "exit-on-error")
    assert FluxRun().launch(request("mpich", gpus=Gpus(8, 2))).argv == ("flux", "run", *words, *PROGRAM)


def test_ranks_that_share_gpus_get_whole_nodes_and_cores_of_their_own() -> None:
    words = ("-N", "2", "--exclusive", "--tasks-per-node=4", "-o", "cpu-affinity=per-task", "-o", "exit-on-error")
    assert FluxRun().launch(request("mpich", gpus=Gpus.of(3, 4))).argv == ("flux", "run", *words, *PROGRAM)


def test_ranks_that_share_cores_get_whole_nodes_and_are_not_bound() -> None:
    words = ("-N", "2", "--exclusive", "--tasks-per-node=4", "-o", "cpu-affinity=off", "-o", "exit-on-error")
    assert FluxRun().launch(request("mpich", placement(bind=False))).argv == ("flux", "run", *words, *PROGRAM)


def test_ranks_that_share_cores_must_be_as_many_on_each_node() -> None:
    with pytest.raises(InvalidInput, match="cannot share cores among 7 ranks on 2 nodes"):
        FluxRun().launch(request("mpich", placement(ranks=7, bind=False)))


@pytest.mark.parametrize(
    ("family", "option"), [("openmpi", "pmi=pmix"), ("spectrum-mpi", "mpi=spectrum"), ("cray-mpich", None)]
)
def test_the_job_shell_sets_up_the_librarys_interface(family: Family, option: str | None) -> None:
    words = FluxRun().launch(request(family)).argv
    found = [word for word in words if word.startswith(("pmi=", "mpi="))]
    assert found == ([option] if option else [])


def test_copies_of_a_step_are_held_to_a_host_each() -> None:
    assert FluxRun().launch(request("mpich")).host_option == "--requires=host:"
