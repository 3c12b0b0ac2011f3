"""Options of a job and of its ranks that several commands share."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from hidl_cli.commands.completers import (
    complete_launchers,
    complete_libraries,
    complete_partitions,
    complete_tuning,
)


class Device(str, Enum):
    """What a run computes on."""

    cpu = "cpu"
    gpu = "gpu"


NodesOption = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Number of nodes (default: 1; with --hosts all of them).")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads of each rank (default: the node's cores divided among its ranks)."),
]
DeviceOption = Annotated[
    Device | None,
    typer.Option(
        "--device",
        help="Compute on processors or GPUs (default: GPUs if the nodes have some); cpu requests no GPUs, and takes a "
        "partition without them if there is one and --partition names none.",
    ),
]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        help="Starts the ranks (default: the site's first that serves the MPI library).",
        autocompletion=complete_launchers,
    ),
]
MpiOption = Annotated[
    str | None,
    typer.Option(
        "--mpi",
        help="One of the site's MPI libraries, or `stack`: the stack's own (default: the site's default).",
        autocompletion=complete_libraries,
    ),
]
TuneOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tune",
        "--mv2",
        metavar="NAME=VALUE",
        help="Set a run-time variable of the MPI library (MV2_*, MPIR_CVAR_*, OMPI_MCA_*, ...); repeatable.",
        autocompletion=complete_tuning,
    ),
]
PartitionOption = Annotated[
    str | None,
    typer.Option("--partition", "-p", help="Partition (default: the site's).", autocompletion=complete_partitions),
]
AccountOption = Annotated[str | None, typer.Option("--account", "-A", help="The project that pays.")]
QosOption = Annotated[str | None, typer.Option("--qos", "-q", help="Quality of service.")]
ConstraintOption = Annotated[str | None, typer.Option("--constraint", "-C", help="Node features.")]
ReservationOption = Annotated[str | None, typer.Option("--reservation", help="A reservation.")]
