"""Which CPUs a rank gets by the variables of MVAPICH2, of Intel MPI, and from task_affinity."""

from __future__ import annotations

import pytest
from hidl_twin.standins import rank_binding

HYBRID = {"MV2_CPU_BINDING_POLICY": "hybrid", "MV2_THREADS_PER_PROCESS": "28"}


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """56 cores of one thread each."""
    monkeypatch.setattr(rank_binding, "usable_cores", lambda: [[cpu] for cpu in range(56)])


def of_two(family: str, variables: dict[str, str]) -> list[set[int] | None]:
    return [rank_binding.cpus(family, rank, 2, variables) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("family", "variables"),
    [
        ("mvapich2", HYBRID),
        ("mvapich2", HYBRID | {"MV2_HYBRID_BINDING_POLICY": "spread"}),
        ("mvapich2", {"MV2_CPU_MAPPING": "0-27:28-55"}),
        ("intel-mpi", {"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": "28:compact"}),
        ("task_affinity", {}),
    ],
)
def test_each_of_two_ranks_gets_its_half(family: str, variables: dict[str, str]) -> None:
    assert of_two(family, variables) == [set(range(28)), set(range(28, 56))]


@pytest.mark.parametrize(
    ("family", "variables"),
    [
        ("mvapich2", {"MV2_ENABLE_AFFINITY": "0"} | HYBRID),
        ("mvapich2", HYBRID | {"MV2_THREADS_PER_PROCESS": "29"}),
        ("intel-mpi", {"I_MPI_PIN": "0", "I_MPI_PIN_DOMAIN": "28:compact"}),
        ("intel-mpi", {}),
        ("mpich", HYBRID),
    ],
)
def test_or_none_at_all(family: str, variables: dict[str, str]) -> None:
    assert of_two(family, variables) == [None, None]


def test_intel_mpi_counts_hardware_threads_unless_its_cell_is_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_binding, "usable_cores", lambda: [[core, core + 4] for core in range(4)])
    domain = {"I_MPI_PIN_DOMAIN": "2:compact"}
    assert of_two("intel-mpi", domain) == [{0, 4}, {1, 5}]
    assert of_two("intel-mpi", domain | {"I_MPI_PIN_CELL": "core"}) == [{0, 1}, {2, 3}]


def test_intel_mpi_scatters_domains_over_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_binding, "socket_of", lambda cpu: str(cpu // 28))
    domain = {"I_MPI_PIN_DOMAIN": "9:scatter", "I_MPI_PIN_CELL": "core"}
    assert [rank_binding.cpus("intel-mpi", rank, 4, domain) for rank in range(4)] == [
        set(range(9)),
        set(range(28, 37)),
        set(range(9, 18)),
        set(range(37, 46)),
    ]


def test_mvapich2_binds_to_one_core_unless_reported_otherwise() -> None:
    assert of_two("mvapich2", {}) == [{0}, {1}]
    assert of_two("mvapich2", {"MV2_CPU_BINDING_POLICY": "scatter"}) == [{0}, {28}]


def test_spread_leaves_room_between_the_ranks() -> None:
    spread = {"MV2_CPU_BINDING_POLICY": "hybrid", "MV2_THREADS_PER_PROCESS": "2", "MV2_HYBRID_BINDING_POLICY": "spread"}
    assert of_two("mvapich2", spread) == [{0, 1}, {28, 29}]


def test_a_mapping_names_cpus_one_by_one_too() -> None:
    assert of_two("mvapich2", {"MV2_CPU_MAPPING": "0,2,4:1,3"}) == [{0, 2, 4}, {1, 3}]
