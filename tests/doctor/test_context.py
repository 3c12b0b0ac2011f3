"""What is known of the host that is examined."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.site.schema import Site
from tests.doctor.machines import context, host, installed, local, slurm


@pytest.mark.parametrize(
    ("site", "programs", "is_here"),
    [
        (local(), (), True),
        (slurm(), ("sbatch",), True),
        (slurm(), (), False),
        (local(match={"hostname": "login[0-9]+"}), (), False),
        (slurm(match={"hostname": "node[0-9]+"}), (), True),
        (slurm(match={"hostname": "node[0-9]+", "cluster": "big"}), (), False),
    ],
)
def test_a_host_is_part_of_a_site_by_its_match_or_else_by_its_scheduler(
    site: Site, programs: tuple[str, ...], is_here: bool
) -> None:
    assert context(host(None, *programs), site).is_here == is_here


@pytest.mark.parametrize(("place", "is_active"), [("/stacks/mpi/1", True), ("/stacks/mpi/2", False), ("", False)])
def test_a_stack_is_active_in_a_shell_that_sourced_its_script(place: str, is_active: bool) -> None:
    examined = context(host(VIRTUAL_ENV=place), installation=installed(Path("/stacks/mpi/1")))
    assert examined.is_active == is_active
