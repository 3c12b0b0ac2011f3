"""The energy that the nodes of a program use, from counters of the machine.

::

    meter = energy.Meter(MPI.COMM_WORLD)
    meter.start()
    ...
    meter.stop()
    metrics.report(..., energy=meter.collect(5120, "image"))

Counters are read on one rank of each node: RAPL through powercap (``package``, ``dram``), NVML (``gpu``: the ranks'
GPUs), and Cray's pm_counters (``node``, and the others if their first source is missing). A figure is the sum over all
nodes. If a machine does not count something, it is not measured; nothing is derived from nominal power.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_workloads import gpus
from hidl_workloads.metrics import Metric

if TYPE_CHECKING:
    from mpi4py import MPI

#: What counters cover. ``package``: processors with their caches; ``dram``: their memory; ``node``: the whole node;
#: ``gpu``: GPUs with their memory.
COVERS = ("package", "dram", "node", "gpu")
#: Variable with the directory in which the system's ``/sys`` is mounted, for containers that hide parts of it.
SYSFS = "HIDL_SYSFS"
#: Seconds between two readings. A counter of 65 kJ, which is a small one, wraps after 32 s at 2 kW.
INTERVAL = 20.0
#: A counter may have wrapped twice since it was last read if it could have counted more than this in the meantime.
_MOST_WATTS = 2000.0


class NotMeasured(Exception):
    """A counter that is missing or cannot be read; the message is the reason."""


@dataclass
class Counter:
    """A counter of energy in microjoules, and the energy since it was first read.

    Attributes:
        covers: One of ``COVERS``.
        source: Interface that it is read from.
        read: Function that returns the count; raises ``NotMeasured``.
        wraps: Energy at which the count starts again at 0; None if it does not.
    """

    covers: str
    source: str
    read: Callable[[], int]
    wraps: int | None = None
    used: int = 0
    _last: int | None = None
    _at: float = 0.0

    def update(self) -> None:
        """Read the counter, and add what was used since the last time; raises ``NotMeasured``."""
        before, at = self._last, self._at
        self._last, self._at = self.read(), time.monotonic()
        if before is None:
            return
        if self.wraps is not None and (self._at - at) * _MOST_WATTS * 1e6 > self.wraps:
            raise NotMeasured(f"{self.source}: not read for {self._at - at:.0f} s, and may have wrapped unseen")
        if self._last < before and self.wraps is None:
            raise NotMeasured(f"{self.source}: the counter went back")
        self.used += self._last - before + (self.wraps or 0) * (self._last < before)


@dataclass(frozen=True)
class Used:
    """Source and microjoules of a node by what is covered, and the reasons for what is not measured."""

    counted: Mapping[str, tuple[str, int]]
    reasons: Mapping[str, str]


class Tally:
    """The sum of a node's counters from ``start`` to ``stop``, read in between so that each wrap is seen."""

    def __init__(self, counters: Iterable[Counter], reasons: Mapping[str, str], *, interval: float = INTERVAL) -> None:
        self._counters, self._reasons, self._interval = list(counters), dict(reasons), interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="energy", daemon=True)

    def start(self) -> None:
        """Read the counters for the first time."""
        self._update()
        self._thread.start()

    def stop(self) -> Used:
        """Read the counters for the last time."""
        self._stopped.set()
        self._thread.join()
        self._update()
        counted: dict[str, tuple[str, int]] = {}
        for each in self._counters:
            if each.covers not in self._reasons:
                counted[each.covers] = each.source, each.used + counted.get(each.covers, ("", 0))[1]
        return Used(counted, self._reasons)

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            self._update()

    def _update(self) -> None:
        for each in self._counters:
            if each.covers in self._reasons:
                continue
            try:
                each.update()
            except NotMeasured as error:
                self._reasons[each.covers] = str(error)


@dataclass(frozen=True)
class Energy:
    """The energy of a program's nodes.

    Attributes:
        measured: Source and joules by what is covered.
        reasons: Why the rest is not measured.
        nodes: Number of nodes.
        items: Number of items that the energy was used for.
        item: Name of an item, such as ``image``.
    """

    measured: Mapping[str, tuple[str, float]]
    reasons: Mapping[str, str]
    nodes: int
    items: int
    item: str

    def metrics(self) -> list[Metric]:
        """Return a metric of joules per item for each figure."""
        per_item = {covers: joules / self.items for covers, (_, joules) in self.measured.items()}
        return [Metric(f"{covers}_energy", each, f"J/{self.item}", [each]) for covers, each in per_item.items()]

    def as_document(self) -> dict[str, Any]:
        """Return the part ``energy`` of the metrics document."""
        return {
            "measured": [
                {
                    "covers": covers,
                    "source": source,
                    "joules": joules,
                    "nodes": self.nodes,
                    "items": self.items,
                    "item": self.item,
                }
                for covers, (source, joules) in self.measured.items()
            ],
            "not_measured": dict(self.reasons),
        }


class Meter:
    """The energy of all nodes of a communicator, which one rank of each measures; collective.

    Ranks are grouped by their kernel: MPI may not see that ranks of a node share its memory (``MPIR_CVAR_NOLOCAL=1``,
    containers), and each group would count the node's energy.
    """

    def __init__(self, communicator: MPI.Comm) -> None:
        kernel = _identify_kernel()
        ranks = communicator.allgather((kernel, [str(each.get("id")) for each in gpus.facts()]))
        self._communicator = communicator
        self._tally: Tally | None = None
        if kernel not in [each for each, _ in ranks[: communicator.rank]]:
            self._tally = Tally(*find_counters([id for each, ids in ranks if each == kernel for id in ids]))
        self._used: Used | None = None
        self._started = False

    def start(self) -> None:
        """Begin to measure."""
        self._started = True
        if self._tally is not None:
            self._tally.start()

    def stop(self) -> None:
        """End the measurement."""
        if self._tally is not None and self._started:
            self._used = self._tally.stop()

    def collect(self, items: int, item: str) -> Energy | None:
        """Return the energy of all nodes on rank 0, and None on the others.

        Args:
            items: Number of items that all ranks processed between ``start`` and ``stop``.
            item: Name of an item, such as ``image``.
        """
        leads = self._tally is not None
        used = self._used or Used({}, dict.fromkeys(COVERS, "no step was timed"))
        found = self._communicator.gather(used if leads else None)
        return None if found is None else add_up([each for each in found if each is not None], items, item)


def _identify_kernel() -> str:
    """Return an identifier of the running kernel, or the host's name if there is none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return platform.node()


def add_up(nodes: Sequence[Used], items: int, item: str) -> Energy:
    """Return the sums over all nodes of whatever all of them have measured from the same source."""
    measured, reasons = dict[str, tuple[str, float]](), dict[str, str]()
    for covers in COVERS:
        counted = [each.counted[covers] for each in nodes if covers in each.counted]
        sources = sorted({source for source, _ in counted})
        missing = [each.reasons[covers] for each in nodes if covers in each.reasons]
        if len(counted) == len(nodes) and len(sources) == 1:
            measured[covers] = sources[0], sum(used for _, used in counted) / 1e6
        elif len(sources) > 1:
            reasons[covers] = f"nodes have different counters: {', '.join(sources)}"
        elif counted:
            reasons[covers] = f"{len(nodes) - len(counted)} of {len(nodes)} nodes: {(*missing, 'no GPU')[0]}"
        elif missing:
            reasons[covers] = missing[0]
    return Energy(measured, reasons, len(nodes), items, item)


def find_counters(gpus: Sequence[str] = (), sysfs: Path | None = None) -> tuple[list[Counter], dict[str, str]]:
    """Return the counters of this node, and the reasons why other energy cannot be measured.

    Args:
        gpus: Identifiers of the GPUs to measure.
        sysfs: The directory ``/sys`` (default: from the environment).
    """
    sysfs = sysfs or Path(os.environ.get(SYSFS) or "/sys")
    counters, reasons = [], dict[str, str]()
    for covers in COVERS if gpus else COVERS[:-1]:
        failures = []
        for find in (_powercap, _nvml, _pm_counters):
            try:
                found = find(covers, sysfs, sorted(set(gpus)))
                for each in found:
                    each.read()
            except NotMeasured as error:
                failures.append(str(error))
                continue
            if found:
                counters += found
                break
        else:
            reasons[covers] = "; ".join(failures)
    return counters, reasons


def _powercap(covers: str, sysfs: Path, _: Sequence[str]) -> list[Counter]:
    # Zones of intel-rapl-mmio count the energy of packages again.
    zones = (each for each in (sysfs / "class/powercap").glob("intel-rapl:*") if _ZONE.fullmatch(each.name))
    names = {zone: _read(zone / "name").strip() for zone in sorted(zones)}
    if covers not in ("package", "dram"):
        return []
    found = [zone for zone, name in names.items() if name.split("-")[0] == covers]
    if not found:
        raise NotMeasured(f"powercap: no {covers} counters" if names else "powercap: no RAPL counters")
    return [
        Counter(covers, "powercap", _number(zone / "energy_uj"), _number(zone / "max_energy_range_uj")())
        for zone in found
    ]


_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")


def _pm_counters(covers: str, sysfs: Path, _: Sequence[str]) -> list[Counter]:
    directory = sysfs / "cray/pm_counters"
    found = sorted(each for each in directory.glob("*energy") if re.fullmatch(_OF_CRAY[covers], each.name))
    if not found:
        raise NotMeasured("no pm_counters" if not directory.is_dir() else f"pm_counters: no {covers} counters")
    return [Counter(covers, "pm_counters", _number(each, scale=1_000_000)) for each in found]


_OF_CRAY = {"package": "cpu_energy", "dram": "memory_energy", "node": "energy", "gpu": r"accel\d+_energy"}


def _number(path: Path, scale: int = 1) -> Callable[[], int]:
    """Return a function that reads the number at the beginning of a file."""

    def read() -> int:
        text = _read(path)
        try:
            return int(text.split()[0]) * scale
        except (ValueError, IndexError):
            raise NotMeasured(f"{path}: {text.strip()!r} is not a number") from None

    return read


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise NotMeasured(f"{path}: {error.strerror}") from error


def _nvml(covers: str, _: Path, gpus: Sequence[str]) -> list[Counter]:
    if covers != "gpu":
        return []
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        _call(library, "nvmlInit_v2")
    except OSError:
        raise NotMeasured("NVML: libnvidia-ml.so.1 not found") from None
    return [Counter(covers, "NVML", _nvml_reader(library, each)) for each in gpus]


def _nvml_reader(library: ctypes.CDLL, gpu: str) -> Callable[[], int]:
    if gpu.startswith("MIG-"):
        raise NotMeasured("NVML: the energy of a MIG instance is not counted")
    handle = ctypes.c_void_p()
    if gpu.isdecimal():
        _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(gpu)), ctypes.byref(handle))
    else:
        _call(library, "nvmlDeviceGetHandleByUUID", ctypes.c_char_p(gpu.encode()), ctypes.byref(handle))

    def read() -> int:
        millijoules = ctypes.c_ulonglong()
        _call(library, "nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(millijoules))
        return millijoules.value * 1000

    return read


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    try:
        status = getattr(library, name)(*arguments)
    except AttributeError:
        raise NotMeasured(f"NVML: no function {name}") from None
    if status:
        raise NotMeasured(f"NVML: {name} returned {status}")
