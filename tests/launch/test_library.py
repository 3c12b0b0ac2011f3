"""Which MPI library and which launcher a run gets."""

from __future__ import annotations

import pytest

from hidl_cli.errors import UsageError
from hidl_cli.launch.hosts import on_hosts, parse_hosts
from hidl_cli.launch.library import launcher_for, library_for
from hidl_cli.mpi import Library
from tests.launch.sites import site

OWN = Library("pytorch", "mpich", prefix="/stacks/pytorch")


def test_default_is_the_stacks_own_library() -> None:
    assert library_for(site(), OWN, None) is OWN


def test_the_sites_default_wins_unless_stack_is_named() -> None:
    here = site(default_mpi="mv2")
    assert library_for(here, OWN, None) == Library("mv2", "mvapich2-gdr", version="2.3.7", modules=("mv2",))
    assert library_for(here, OWN, "stack") is OWN


def test_unknown_library_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        library_for(site(), OWN, "impi")
    assert caught.value.hint == "choose one of: mv2, ompi, stack"


@pytest.mark.parametrize(("mpi", "expected"), [(None, "srun"), ("mv2", "mpirun_rsh"), ("ompi", "srun")])
def test_the_launcher_is_the_first_that_serves_the_library(mpi: str | None, expected: str) -> None:
    assert launcher_for(site(), library_for(site(), OWN, mpi), None) == expected


def test_a_launcher_that_does_not_serve_the_library_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no launcher 'srun' for MPI library mv2") as caught:
        launcher_for(site(), library_for(site(), OWN, "mv2"), "srun")
    assert caught.value.hint == "choose one of: mpirun_rsh"


def test_a_launcher_of_a_scheduler_is_refused_on_hosts_over_ssh() -> None:
    with pytest.raises(UsageError, match="launcher srun requires a scheduler; hosts over ssh have none") as caught:
        launcher_for(on_hosts(site(), parse_hosts("gpu11,gpu12")), OWN, "srun")
    assert caught.value.hint == "use one of the launchers that work over ssh: mpiexec, mpirun, mpirun_rsh"


def test_a_library_without_a_launcher_is_refused_with_the_other_libraries() -> None:
    with pytest.raises(UsageError, match=r"no launcher for MPI library pytorch \(mpich\)") as caught:
        launcher_for(site(launchers=["mpirun_rsh"]), OWN, None)
    assert caught.value.hint == "other MPI libraries (--mpi): mv2, ompi"


def test_a_site_whose_launchers_are_unknown_says_so() -> None:
    with pytest.raises(UsageError, match="unknown launcher"):
        launcher_for(site(launchers=[]), OWN, None)


@pytest.mark.parametrize(("family", "expected"), [("mvapich2-gdr", "mpich"), ("spectrum-mpi", "openmpi")])
def test_the_abi_is_one_of_two(family: str, expected: str) -> None:
    assert Library("x", family).traits.abi == expected  # type: ignore[arg-type]
