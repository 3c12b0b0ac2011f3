"""Which launcher starts the ranks of which MPI library."""

from __future__ import annotations

import pytest

from hidl_cli.errors import ExitCode, InvalidInput
from hidl_cli.launch.launchers import launcher, launchers
from hidl_cli.launch.launchers.families import STARTS, fitting
from hidl_cli.mpi import FAMILIES, Family
from tests.launch.launchers.asking import request

PAIRS = [(name, family) for name in STARTS for family in FAMILIES]


def test_each_launcher_has_its_families() -> None:
    assert set(STARTS) == set(launchers())


@pytest.mark.parametrize(("name", "family"), [pair for pair in PAIRS if pair[1] in STARTS[pair[0]]])
def test_a_launcher_starts_the_program_of_its_families_as_it_is(name: str, family: Family) -> None:
    launch = launcher(name).launch(request(family))
    assert launch.words[-4:] == ("python", "-m", "train", "--note=a b")


@pytest.mark.parametrize(("name", "family"), [pair for pair in PAIRS if pair[1] not in STARTS[pair[0]]])
def test_and_refuses_the_others_naming_what_fits(name: str, family: Family) -> None:
    with pytest.raises(InvalidInput, match=f"launcher {name} cannot start the ranks of {family}") as refused:
        launcher(name).launch(request(family))
    assert refused.value.hint == f"launchers that can: {', '.join(fitting(family))}"
    assert refused.value.exit_code == ExitCode.INVALID_INPUT


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_a_launcher(family: Family) -> None:
    assert fitting(family)


@pytest.mark.parametrize(("name", "family"), [pair for pair in PAIRS if pair[1] in STARTS[pair[0]]])
def test_arguments_of_the_site_stand_before_the_program(name: str, family: Family) -> None:
    mpi = {"launcher_arguments": {name: ("--of-the-site", "a b"), "another": ("--not-these",)}}
    words = launcher(name).launch(request(family, mpi=mpi)).words
    assert words.index("--of-the-site") < words.index("python")
    assert words[words.index("--of-the-site") + 1] == "a b"
    assert "--not-these" not in words
