"""What a scheduler is asked for, by the site's partitions and policies."""

from __future__ import annotations

import pytest

from hidl_cli.errors import UsageError
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.launch.placement import Allocation, Placement, allocate, missing
from hidl_cli.schedulers import pbs, slurm
from hidl_cli.site.schema import Policies
from tests.launch.sites import site

STUDY = [Placement(1, 4, 4, 2, bind=True), Placement(3, 4, 12, 2, bind=True)]


def test_one_allocation_holds_all_steps_of_a_study() -> None:
    allocation = allocate(site(), "job", STUDY, AllocationOptions(account="abc"))
    assert allocation == Allocation(
        job_name="job",
        nodes=3,
        ranks_per_node=4,
        cores_per_rank=2,
        gpus_per_node=4,
        memory_gib=64.0,
        time_limit=1800,
        queue="p",
        account="abc",
    )


def test_a_partition_goes_by_the_schedulers_name_with_its_quality_of_service() -> None:
    allocation = allocate(site(), "job", STUDY, AllocationOptions(partition="large"))
    assert (allocation.queue, allocation.qos) == ("batch", "big")


def test_what_the_user_asks_for_goes_before_what_the_partition_says() -> None:
    assert allocate(site(), "job", STUDY, AllocationOptions(partition="large", qos="mine")).qos == "mine"


@pytest.mark.parametrize("line", ["partition", "qos", "constraint"])
def test_a_line_that_the_site_refuses_is_left_out(line: str) -> None:
    partitions = {"p": {"node_type": "n", "qos": "q", "constraint": "gpu"}}
    allocation = allocate(site(partitions=partitions, policies={line: "never"}), "job", STUDY, AllocationOptions())
    assert getattr(allocation, "queue" if line == "partition" else line) is None


@pytest.mark.parametrize("option", ["account", "qos", "constraint", "reservation"])
def test_an_option_that_the_site_refuses_is_an_error(option: str) -> None:
    with pytest.raises(UsageError, match=f"does not accept --{option}"):
        allocate(site(policies={option: "never"}), "job", STUDY, AllocationOptions(**{option: "x"}))


@pytest.mark.parametrize("option", ["account", "qos", "constraint", "reservation"])
def test_what_the_site_demands_and_nobody_gave_is_reported(option: str) -> None:
    here = site(policies={option: "required"})
    assert missing(here.policies, allocate(here, "job", STUDY, AllocationOptions())) == [f"--{option}"]
    assert missing(here.policies, allocate(here, "job", STUDY, AllocationOptions(**{option: "x"}))) == []


def test_a_partition_is_demanded_where_there_is_no_default() -> None:
    nowhere = site(default_partition=None, policies={"partition": "required"})
    assert missing(nowhere.policies, allocate(nowhere, "job", STUDY, AllocationOptions())) == ["--partition"]


@pytest.mark.parametrize("turned", [False, True])
def test_steps_of_different_threads_get_the_cores_of_the_largest(turned: bool) -> None:
    """As in a bisect between 128 ranks of one thread and 8 ranks of 16."""
    machine = site(node_types={"n": {"cores": 128, "gpus": 0}})
    full, few = Placement(1, 128, 128, 1, bind=True), Placement(1, 8, 8, 12, bind=True)
    allocation = allocate(machine, "job", [few, full] if turned else [full, few], AllocationOptions())
    policies = Policies.model_validate({"exclusive": False})
    assert "ncpus=128:mpiprocs=128" in "".join(pbs.header(allocation, policies))
    found = slurm.header(allocation, policies)
    assert {"#SBATCH --ntasks-per-node=1", "#SBATCH --cpus-per-task=128"} <= set(found)
