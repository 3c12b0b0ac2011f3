"""Why a job waits, and whether it would wait for ever."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hidl_cli.schedulers.decision import Never
from hidl_cli.schedulers.slurm.jobs import SlurmJob, minutes

#: As things stand, a job with one of these never starts: what it requests is allowed nowhere.
_FOR_EVER = {
    "BadConstraints": "no node meets its request",
    "DependencyNeverSatisfied": "the job that it depends on did not end as required",
    "InvalidAccount": "the account is not one that may be used here",
    "InvalidQOS": "the quality of service is not one that may be used here",
    "QOSNotAllowed": "the quality of service is not allowed in this partition",
    "AccountNotAllowed": "the account is not allowed in this partition",
    "ReservationDeleted": "the reservation is gone",
    "MaxRequeueExceeded": "it was requeued as often as the site allows",
    "MaxMemPerLimit": "it requests more memory than the site allows",
    "QOSTimeLimit": "it requests more time than the quality of service allows",
    "AssociationTimeLimit": "it requests more time than the account allows",
}
#: Seconds for which these must have stood. Nodes of a cloud have constraints that are met once they are up again, and a
#: controller that starts before its database knows no account.
_AFTER = {"BadConstraints": 600.0, "InvalidAccount": 60.0, "InvalidQOS": 60.0}
#: The per-job limits of accounts and qualities of service (AssocMaxWallDurationPerJobLimit, QOSMinGRES, ...). Limits on
#: all jobs of a user or an account together (AssocMaxJobsLimit, QOSMaxNodePerUserLimit, AssocGrp...) pass.
_PER_JOB_LIMIT = re.compile(r"(Assoc|QOS)(Max\w*Per(Job|Node)\w*|MaxWallDuration\w*|Min\w+)")

_UNLIMITED = frozenset(("", "UNLIMITED", "INFINITE", "(null)"))


def never_starts(job: SlurmJob, partition: Callable[[str], Mapping[str, str]]) -> Never | None:
    """Why a pending job would never start as things stand, with the limit and its value; None where it may start.

    ``partition`` gives what ``scontrol show partition`` says. What Slurm calls a partition's limit is believed only
    where the partition's numbers show it: the same words stand for nodes that are merely down.
    """
    reason = re.split(r"[\s,(]", job.why, maxsplit=1)[0]
    if reason in ("PartitionNodeLimit", "PartitionTimeLimit", "PartitionConfig"):
        beyond = _beyond(job, partition(job.partition))
        return Never(f"{reason}: {beyond}") if beyond else None
    if reason in _FOR_EVER:
        return Never(f"{reason}: {_FOR_EVER[reason]}", after=_AFTER.get(reason, 0.0))
    return Never(f"{reason}: it is beyond a limit on single jobs") if _PER_JOB_LIMIT.fullmatch(reason) else None


def limits(name: str, partition: Mapping[str, str]) -> str:
    """A partition's limits in words."""
    known = {key: partition.get(key, "") for key in ("MinNodes", "MaxNodes", "TotalNodes", "MaxTime")}
    words = ", ".join(f"{key}={value}" for key, value in known.items() if value not in _UNLIMITED and value != "0")
    return f"partition {name} allows {words}" if words else ""


def _beyond(job: SlurmJob, partition: Mapping[str, str]) -> str | None:
    """Which of the partition's limits the job is beyond."""
    nodes = int(job.nodes) if job.nodes.isdecimal() else 0
    for key in ("MaxNodes", "TotalNodes"):
        if partition.get(key, "").isdecimal() and nodes > int(partition[key]):
            return f"{nodes} nodes asked for, and partition {job.partition} has {key}={partition[key]}"
    if partition.get("MinNodes", "").isdecimal() and nodes < int(partition["MinNodes"]):
        return f"{nodes} node(s) asked for, and partition {job.partition} has MinNodes={partition['MinNodes']}"
    asked, most = minutes(job.limit), minutes(partition.get("MaxTime", ""))
    if most is not None and (asked is None or asked > most):
        limit = job.limit or "no time limit"
        return f"{limit} asked for, and partition {job.partition} has MaxTime={partition['MaxTime']}"
    return None
