"""The metrics document, ``hidl.metrics/1``: what a program measured, written once, by rank 0, to ``$HIDL_METRICS``."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

    from hidl_workloads.energy import Energy

METRICS_FILE = "HIDL_METRICS"
SCHEMA = "hidl.metrics/1"


@dataclass(frozen=True)
class Metric:
    """One figure with its unit and the samples that it was made from: numbers in that unit, or one text per rank.

    Where the samples belong to message sizes, ``sizes`` holds these: one for each sample, in bytes. Where they belong
    to pairs of nodes, ``pairs`` holds their names.
    """

    name: str
    value: float | str
    unit: str
    samples: Sequence[float | str]
    sizes: Sequence[int] | None = None
    pairs: Sequence[tuple[str, str]] | None = None

    def as_document(self) -> dict[str, Any]:
        """Return the entry of this metric in the metrics document."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def report(
    communicator: MPI.Comm,
    *,
    program: str,
    parameters: Mapping[str, Any],
    versions: Mapping[str, str],
    metrics: Sequence[Metric],
    energy: Energy | None = None,
) -> None:
    """Write the document from rank 0; every rank of ``communicator`` calls this. No ``$HIDL_METRICS``: no file.

    ``versions`` are the program's own; those of Python, mpi4py and the MPI library are added. ``energy`` matters on
    rank 0. Raises ``ValueError`` for a figure that is not finite, which JSON does not have, and ``OSError`` where the
    file cannot be written.
    """
    from mpi4py import __version__

    from hidl_workloads import mpi_library

    world = _describe(communicator)
    target = os.environ.get(METRICS_FILE)
    if communicator.rank != 0 or not target:
        return
    base = {"python": platform.python_version(), "mpi4py": __version__, "mpi_library": mpi_library.version()}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "program": program,
        "world": world,
        "parameters": dict(parameters),
        "versions": {**base, **versions},
        "metrics": [metric.as_document() for metric in [*metrics, *(energy.metrics() if energy else [])]],
    }
    if energy is not None:
        document["energy"] = energy.as_document()
    document.update(_slurm_step())
    write_json(Path(target), document)


def _slurm_step() -> dict[str, str]:
    """Return the step of a Slurm job that started this process, of which Slurm may know the energy."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    return {"slurm_step": f"{job}.{step}"} if job and step else {}


def report_world(communicator: MPI.Comm) -> None:
    """Write ``world.json`` beside the metrics document, for a program that writes none; every rank calls this."""
    world = _describe(communicator)
    target = os.environ.get(METRICS_FILE)
    if communicator.rank == 0 and target:
        write_json(Path(target).with_name("world.json"), world)


def _describe(communicator: MPI.Comm) -> dict[str, Any]:
    """Return the hosts of all ranks and what they compute on, on rank 0. Collective."""
    from mpi4py import MPI

    from hidl_workloads import gpus

    device = os.environ.get(gpus.DEVICE)
    hosts = communicator.gather(MPI.Get_processor_name())
    cards = communicator.gather(gpus.facts()) if device == "gpu" else None
    return {
        "size": communicator.size,
        "hosts": hosts,
        **({"device": device} if device else {}),
        **({"gpus": cards} if cards is not None else {}),
    }


def write_json(path: Path, document: Any) -> None:
    """Write ``document`` beside ``path`` and rename it into place, so that no reader sees half of it.

    The text is ASCII: any string that an argument can hold, unpaired surrogates too, is read back as it was.
    """
    text = json.dumps(document, indent=2, allow_nan=False)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
