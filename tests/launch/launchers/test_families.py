"""Which launcher starts the ranks of which MPI library."""

from __future__ import annotations

import pytest

from hidl_cli.errors import ExitCode, InvalidInput
from hidl_cli.launch.launchers import launcher
from hidl_cli.launchers import LAUNCHERS, fitting, starts
from hidl_cli.mpi import FAMILIES, Family, Library
from tests.launch.launchers.asking import request

PAIRS = [(name, family) for name in LAUNCHERS.built_in for family in FAMILIES]
FIT = [(name, family) for name, family in PAIRS if family in launcher(name).starts]


@pytest.mark.parametrize("name", LAUNCHERS.built_in)
def test_a_launcher_is_registered_by_its_own_name(name: str) -> None:
    assert launcher(name).name == name
    assert launcher(name).starts


def test_ibrun_and_pals_do_not_start_a_stacks_own_library() -> None:
    own = Library("mpi", "mpich")
    assert [name for name in LAUNCHERS.built_in if starts(name, own) and not starts(name, own, of_site=False)] == [
        "pals"
    ]
    assert not starts("ibrun", Library("openmpi", "openmpi"), of_site=False)


@pytest.mark.parametrize(("name", "family"), FIT)
def test_a_launcher_starts_the_program_of_its_families_as_it_is(name: str, family: Family) -> None:
    launch = launcher(name).launch(request(family))
    assert launch.words[-4:] == ("python", "-m", "train", "--note=a b")


@pytest.mark.parametrize(("name", "family"), [pair for pair in PAIRS if pair not in FIT])
def test_a_launcher_refuses_other_families_with_the_launchers_that_fit(name: str, family: Family) -> None:
    with pytest.raises(InvalidInput, match=f"launcher {name} cannot start the ranks of {family}") as refused:
        launcher(name).launch(request(family))
    assert refused.value.hint == f"use one of: {', '.join(fitting(family))}"
    assert refused.value.exit_code == ExitCode.INVALID_INPUT


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_a_launcher(family: Family) -> None:
    assert fitting(family)


@pytest.mark.parametrize(("name", "family"), FIT)
def test_arguments_of_the_site_stand_before_the_program(name: str, family: Family) -> None:
    mpi = {"launcher_arguments": {name: ("--of-the-site", "a b"), "another": ("--not-these",)}}
    words = launcher(name).launch(request(family, mpi=mpi)).words
    assert words.index("--of-the-site") < words.index("python")
    assert words[words.index("--of-the-site") + 1] == "a b"
    assert "--not-these" not in words
