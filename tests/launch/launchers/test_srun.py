"""srun: the type of --mpi, the binding, the GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from hidl_cli.launch.launchers.contract import Gpus
from hidl_cli.launch.launchers.srun import Srun
from hidl_cli.launch.placement import Placement, Topology
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
def test_mpi_type_follows_the_family(family: Family, word: str | None) -> None:
    assert mpi_words(family) == ([word] if word else [])


@pytest.mark.parametrize("given", ["pmix_v4", "pmix_v5", "cray_shasta", "pspmix", "none"])
def test_mpi_type_of_the_site_wins(given: str) -> None:
    assert mpi_words("mpich", srun_mpi=given) == [f"--mpi={given}"]


@pytest.mark.parametrize("family", ["openmpi", "mpich", "cray-mpich"])
def test_mpi_type_default_leaves_the_option_out(family: Family) -> None:
    assert mpi_words(family, srun_mpi="default") == []


def test_ranks_that_share_cores_are_not_bound() -> None:
    words = Srun().launch(request("mpich", placement(bind=False))).argv
    assert "--overcommit" in words
    assert "--cpu-bind=none" in words
    assert not [word for word in words if word.startswith("--cpus-per-task")]


@pytest.mark.parametrize(
    ("node", "ranks", "threads", "gpus", "in_a_row"),
    [
        (Topology(48, 2), 4, 12, Gpus(4, 1), True),
        (Topology(48, 2, 2), 8, 6, Gpus(8, 1), True),
        (Topology(48, 2), 8, 6, Gpus(4, 1), False),  # ranks 4 to 7 share the GPUs of ranks 0 to 3: half are far
        (Topology(48, 2), 2, 24, Gpus(4, 2), False),  # alike
        (Topology(48, 2), 2, 11, Gpus(2, 1), False),  # in a row, both would be on the first socket
        (Topology(48, 2), 4, 11, Gpus(4, 1), False),  # in a row, the third would straddle
        (Topology(48, 1), 4, 12, Gpus(4, 1), False),
        (Topology(48, 2), 4, 12, None, False),
    ],
)
def test_ranks_are_on_the_sockets_of_their_gpus(
    node: Topology, ranks: int, threads: int, gpus: Gpus | None, in_a_row: bool
) -> None:
    of_node = Placement(2, ranks, 2 * ranks, threads, bind=True, node=node)
    assert ("--distribution=block:block" in Srun().launch(request("mpich", of_node, gpus=gpus)).argv) == in_a_row


def test_a_distribution_of_the_user_has_precedence() -> None:
    of_node = Placement(2, 4, 8, 12, bind=True, node=Topology(48, 2))
    asked = request("mpich", of_node, gpus=Gpus(4, 1), environment={"SLURM_DISTRIBUTION": "cyclic:cyclic"})
    assert not any("--distribution" in word for word in Srun().launch(asked).argv)


def test_all_ranks_of_a_node_see_all_its_gpus() -> None:
    assert "--gpu-bind=none" in Srun().launch(request("mpich", gpus=Gpus(4, 1))).argv


def test_a_step_can_be_smaller_than_the_job() -> None:
    argv = Srun().launch(request("mpich", placement(1, 1))).argv
    assert argv[1:4] == ("--nodes=1", "--ntasks=1", "--ntasks-per-node=1")


def test_it_exports_the_whole_environment() -> None:
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
def test_open_mpi_gets_a_ring_fence_unless_one_is_set(
    family: Family, srun_mpi: str | None, environment: dict[str, str], fence: str | None
) -> None:
    launch = Srun().launch(request(family, mpi={"srun_mpi": srun_mpi}, environment=environment))
    assert launch.environment.get("SLURM_PMIX_FENCE") == fence


def mpi_words(family: Family, **mpi: str) -> list[str]:
    return [word for word in Srun().launch(request(family, mpi=mpi)).argv if word.startswith("--mpi")]


WHEEL = {"netmods": ("ofi", "ucx")}


@pytest.mark.parametrize(
    ("keys", "environment", "netmod", "provider"),
    [
        (WHEEL, {}, "ofi", "^sockets"),
        (WHEEL, {"MPIR_CVAR_CH4_NETMOD": "ucx"}, None, "^sockets"),
        (WHEEL, {"FI_PROVIDER": "psm3"}, "ofi", None),
        (WHEEL | {"srun_mpi": "pmix"}, {}, None, None),
        ({"netmods": ("ucx",)}, {}, None, None),
        ({}, {}, None, None),
    ],
)
def test_mpich_with_ofi_gets_short_addresses_and_no_sockets_provider(
    keys: dict[str, Any], environment: dict[str, str], netmod: str | None, provider: str | None
) -> None:
    launch = Srun().launch(request("mpich", mpi=keys, environment=environment))
    assert launch.environment.get("MPIR_CVAR_CH4_NETMOD") == netmod
    assert launch.environment.get("FI_PROVIDER") == provider


def test_under_psslurm_open_mpi_starts_without_a_type_and_without_slurms_fence() -> None:
    """JSC's srun is ParaStation's: a ``pmix`` of Slurm's own does not exist there."""
    for given, words in (("default", []), ("pspmix", ["--mpi=pspmix"])):
        launch = Srun().launch(request("openmpi", mpi={"srun_mpi": given}))
        assert [word for word in launch.argv if word.startswith("--mpi=")] == words
        assert "SLURM_PMIX_FENCE" not in launch.environment
