"""The order in which partitions compute: pure functions of the numbers of partitions, micro-batches and chunks."""

from hyparflow.schedules.actions import (
    NAMES,
    Action,
    Schedule,
    in_flight,
    owner,
    pipelines,
    problems,
    stages_on,
)
from hyparflow.schedules.algorithms import schedule
from hyparflow.schedules.check import check

__all__ = [
    "NAMES",
    "Action",
    "Schedule",
    "check",
    "in_flight",
    "owner",
    "pipelines",
    "problems",
    "schedule",
    "stages_on",
]
