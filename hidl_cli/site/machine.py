"""Facts of the machine that hidl runs on."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import Any

from hidl_cli import process


def describe() -> dict[str, Any]:
    """The values of a node type, for this machine."""
    cpus = os.sched_getaffinity(0)
    topology = Path("/sys/devices/system/cpu")
    cores = {
        (
            (topology / f"cpu{cpu}/topology/physical_package_id").read_text(),
            (topology / f"cpu{cpu}/topology/core_id").read_text(),
        )
        for cpu in cpus
    }
    gpus = []
    if shutil.which("nvidia-smi"):
        gpus = process.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], timeout=5).stdout.splitlines()
    return {
        "arch": platform.machine(),
        "sockets": len({socket for socket, _ in cores}),
        "cores": len(cores),
        "threads_per_core": len(cpus) // len(cores),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": len(gpus),
        "gpu_model": gpus[0] if gpus else None,
    }
