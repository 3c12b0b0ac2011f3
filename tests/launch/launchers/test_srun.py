"""srun: the type of --mpi, the binding, the GPUs."""

from __future__ import annotations

import pytest

from hidl_cli.launch.launchers.srun import Srun
from hidl_cli.mpi import Family
from tests.launch.launchers.asking import PROGRAM, placement, request


def test_the_whole_command() -> None:
    assert Srun().launch(request("mpich")).argv == (
        "srun",
        "--nodes=2",
        "--ntasks=8",
        "--ntasks-per-node=4",
        "--cpus-per-task=8",
        "--cpu-bind=cores",
        "--mpi=pmi2",
        "--kill-on-bad-exit=1",
        "--export=ALL",
        *PROGRAM,
    )


@pytest.mark.parametrize(
    ("family", "word"),
    [
        *[(family, "--mpi=pmi2") for family in ("mpich", "mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus")],
        ("intel-mpi", "--mpi=pmi2"),
        ("openmpi", "--mpi=pmix"),
        ("cray-mpich", None),
    ],
)
def test_the_type_of_mpi_follows_from_the_library(family: Family, word: str | None) -> None:
    assert mpi_words(family) == ([word] if word else [])


@pytest.mark.parametrize("given", ["pmix_v4", "cray_shasta", "none"])
def test_unless_the_site_says_it(given: str) -> None:
    assert mpi_words("mpich", srun_mpi=given) == [f"--mpi={given}"]


def test_a_node_with_too_few_cores_shares_them() -> None:
    words = Srun().launch(request("mpich", placement(bind=False))).argv
    assert "--overcommit" in words
    assert "--cpu-bind=none" in words
    assert not [word for word in words if word.startswith("--cpus-per-task")]


def test_all_ranks_of_a_node_see_all_its_gpus() -> None:
    assert "--gpu-bind=none" in Srun().launch(request("mpich", gpus_per_rank=1)).argv


def test_a_step_can_be_smaller_than_the_job() -> None:
    argv = Srun().launch(request("mpich", placement(1, 1))).argv
    assert argv[1:4] == ("--nodes=1", "--ntasks=1", "--ntasks-per-node=1")


def test_the_environment_is_passed_on_by_itself() -> None:
    launch = Srun().launch(request("mpich", environment={"N": "a b"}, forward=("PATH",)))
    assert (launch.forwarded, launch.rest, [word for word in launch.argv if "N=" in word]) == ((), (), [])


@pytest.mark.parametrize(
    ("family", "srun_mpi", "environment", "fence"),
    [
        ("openmpi", None, {}, "ring"),
        ("openmpi", "pmix_v4", {}, "ring"),
        ("openmpi", "pmix", {"SLURM_PMIX_FENCE": "tree"}, None),
        ("openmpi", "pmi2", {}, None),
        ("mpich", "pmix", {}, None),
    ],
)
def test_ranks_of_open_mpi_leave_init_together_unless_somebody_knows_better(
    family: Family, srun_mpi: str | None, environment: dict[str, str], fence: str | None
) -> None:
    launch = Srun().launch(request(family, mpi={"srun_mpi": srun_mpi}, environment=environment))
    assert launch.environment.get("SLURM_PMIX_FENCE") == fence


def mpi_words(family: Family, **mpi: str) -> list[str]:
    return [word for word in Srun().launch(request(family, mpi=mpi)).argv if word.startswith("--mpi")]
