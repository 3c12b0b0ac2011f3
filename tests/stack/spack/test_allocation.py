"""Where packages are built: here, or on a node of the site's scheduler."""

from __future__ import annotations

import pytest

from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack.providers.spack.allocation import command
from tests.stack.spack.conftest import site

BUILD = {"build_on": "allocation"}


def test_on_the_login_node_nothing_is_put_before_the_command() -> None:
    assert command(site(), {}) == ()


def test_slurm_gives_one_node_with_what_the_site_demands() -> None:
    assert command(site(spack=BUILD), {}) == (
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "--partition=normal",
        "--time=48:00:00",
    )


def test_lsf_gives_one_node_and_takes_hours_and_minutes() -> None:
    machine = site(spack=BUILD, scheduler="lsf", policies={"default_time": "1-02:30:00"})
    assert command(machine, {}) == ("bsub", "-I", "-nnodes", "1", "-q", "normal", "-W", "26:30")


def test_inside_an_allocation_no_other_is_asked_for() -> None:
    assert command(site(spack=BUILD), {"SLURM_JOB_ID": "1"}) == ()


def test_a_scheduler_that_gives_no_nodes_is_reported() -> None:
    with pytest.raises(MissingPrecondition, match="its scheduler gives none"):
        command(site(spack=BUILD, scheduler="local"), {})
