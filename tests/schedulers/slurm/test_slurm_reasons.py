"""Which pending jobs would wait for ever."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hidl_cli.record import State
from hidl_cli.schedulers.decision import StartBlocker
from hidl_cli.schedulers.slurm import SlurmJob, keys, limits, never_starts

#: As `scontrol show partition small` printed it (Slurm 22.05).
SMALL = keys("""PartitionName=small
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   AllocNodes=ALL Default=NO QoS=N/A
   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   MaxNodes=2 MaxTime=00:05:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes=node[1-2]
   OverTimeLimit=NONE PreemptMode=OFF
   State=UP TotalCPUs=8 TotalNodes=4 SelectTypeParameters=NONE
   TRES=cpu=8,mem=8000M,node=2,billing=8
""")


def told(
    reason: str, *, nodes: str = "1", limit: str = "1:00", partition: Mapping[str, str] = SMALL
) -> StartBlocker | None:
    return never_starts(
        SlurmJob("1", State.PENDING, "PENDING", why=reason, nodes=nodes, limit=limit, partition="small"),
        lambda _: partition,
    )


@pytest.mark.parametrize(
    ("reason", "nodes", "limit", "value"),
    [
        ("PartitionNodeLimit", "3", "1:00", "MaxNodes=2"),
        ("PartitionConfig", "9", "1:00", "MaxNodes=2"),
        ("PartitionTimeLimit", "1", "10:00", "MaxTime=00:05:00"),
        ("PartitionTimeLimit", "1", "UNLIMITED", "MaxTime=00:05:00"),
    ],
)
def test_a_partitions_limit_is_reported_with_its_value(reason: str, nodes: str, limit: str, value: str) -> None:
    never = told(reason, nodes=nodes, limit=limit)
    assert never is not None
    assert value in never.reason
    assert never.after == 0


@pytest.mark.parametrize("reason", ["PartitionNodeLimit", "PartitionConfig", "PartitionTimeLimit"])
def test_a_partitions_limit_is_not_believed_where_its_numbers_admit_the_job(reason: str) -> None:
    assert told(reason, nodes="2", limit="5:00") is None


@pytest.mark.parametrize("reason", ["PartitionNodeLimit", "PartitionTimeLimit"])
def test_a_job_waits_where_the_partition_is_not_to_be_had(reason: str) -> None:
    assert told(reason, nodes="99", limit="9:00:00", partition={}) is None


@pytest.mark.parametrize(
    "reason",
    [
        "BadConstraints",
        "DependencyNeverSatisfied",
        "InvalidAccount",
        "InvalidQOS",
        "AssocMaxWallDurationPerJobLimit",
        "AssocMaxNodePerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSMaxCpuPerJobLimit",
        "QOSMaxGRESPerJob",
        "QOSMinGRES",
        "QOSMinCpuNotSatisfied",
    ],
)
def test_what_is_beyond_a_limit_on_one_job_waits_for_ever(reason: str) -> None:
    assert told(reason) is not None


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "Priority",
        "Resources",
        "ReqNodeNotAvail, UnavailableNodes:node[3-4]",
        "Dependency",
        "BeginTime",
        "JobHeldUser",
        "JobHeldAdmin",
        "Licenses",
        "Reservation",
        "PartitionDown",
        "PartitionInactive",
        "AssocMaxJobsLimit",
        "AssocGrpNodeLimit",
        "AssocGrpCPUMinutesLimit",
        "QOSMaxJobsPerUserLimit",
        "QOSMaxNodePerUserLimit",
        "QOSGrpNodeLimit",
        "MaxJobsPerAccount",
    ],
)
def test_what_passes_is_waited_for(reason: str) -> None:
    assert told(reason) is None


@pytest.mark.parametrize("reason", ["BadConstraints", "InvalidAccount", "InvalidQOS"])
def test_what_slurm_may_take_back_must_stand_for_a_while(reason: str) -> None:
    never = told(reason)
    assert never is not None
    assert never.after >= 60


def test_a_partitions_limits_are_reported_in_words() -> None:
    assert limits("small", SMALL) == "partition small allows MaxNodes=2, TotalNodes=4, MaxTime=00:05:00"
