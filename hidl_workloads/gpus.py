"""The GPUs of this node, and those that a rank takes: by its local rank, of those that its job may see.

A run on GPUs sets ``$HIDL_DEVICE`` to ``gpu``, and ``$HIDL_GPUS_PER_RANK``. Each rank puts its own GPUs first in the
variable by which the scheduler and the driver limit what a process sees (``CUDA_VISIBLE_DEVICES``): a program's first
GPU is its rank's own, and the others stay visible, as direct transfers between them require. Of MIG instances a process
can use one alone, so it sees that one. A rank without a GPU is an error, never a fallback to the processors.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEVICE = "HIDL_DEVICE"
"""``cpu`` or ``gpu``: what the run computes on."""
GPUS_PER_RANK = "HIDL_GPUS_PER_RANK"
"""How many GPUs each rank takes."""
GPU = "HIDL_GPU"
"""The rank's own GPUs, as the driver names them, separated by commas: set for each rank."""
GPU_FACTS = "HIDL_GPU_FACTS"
"""The same with model, memory and driver, as JSON: set for each rank."""
_VISIBLE = "HIDL_VISIBLE_GPUS"
"""What the job may see, before a rank put its own first."""

_SECONDS = 60.0  # without the persistence daemon, the driver is restarted for each query
_PROC = Path("/proc/driver/nvidia")
_NVIDIA = (
    "nvidia-smi",
    "--query-gpu=uuid,name,memory.total,driver_version,mig.mode.current",
    "--format=csv,noheader,nounits",
)
_NVIDIA_LIST = ("nvidia-smi", "-L")
_AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
_INTEL = ("xpu-smi", "discovery", "-j")
_OF_NVIDIA = ("CUDA_VISIBLE_DEVICES",)
_OF_AMD = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_OF_INTEL = ("ZE_AFFINITY_MASK",)
_MIG = "MIG-"
_MIB = 2**20


class NoGpu(Exception):
    """This process sees no GPU; the message says what was looked at."""


@dataclass(frozen=True)
class Gpu:
    """A GPU or an instance of one (MIG); None: unknown. ``id`` is the driver's name of it, or its number."""

    id: str
    model: str | None = None
    memory_mib: int | None = None
    driver: str | None = None


Ask = Callable[[Sequence[str]], tuple[int | None, str]]


def ask(argv: Sequence[str]) -> tuple[int | None, str]:
    """Return the exit status and the output of a driver's tool; None and why not if it cannot be started."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except FileNotFoundError:
        return None, f"no {argv[0]} on PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{argv[0]}: {error}"
    return done.returncode, done.stdout if done.returncode == 0 else (done.stdout + done.stderr)


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Does the run compute on GPUs?"""
    return environment.get(DEVICE) == "gpu"


def untaken(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why this process of a run on GPUs has none of its own; None if it has taken one."""
    if GPU in environment:
        return None
    return f"${GPU} is not set: start the program with python -m hidl_workloads.world, as hidl run does"


def list_gpus(ask: Ask = ask, proc: Path = _PROC) -> tuple[list[Gpu], tuple[str, ...]]:
    """Return the GPUs of this node, and the variables that limit what a process sees of them.

    Raises ``NoGpu`` if there are none.
    """
    status, text = ask(_NVIDIA)
    if status == 0 and (found := _nvidia(text, ask)):
        return found, _OF_NVIDIA
    if status is None and (found := _of_proc(proc)):
        return found, _OF_NVIDIA
    looked = [_outcome(_NVIDIA, status, text)]
    for tool, read, variables in ((_AMD, _amd, _OF_AMD), (_INTEL, _intel, _OF_INTEL)):
        status, text = ask(tool)
        if status == 0 and (found := read(text)):
            return found, variables
        looked.append(_outcome(tool, status, text))
    raise NoGpu("; ".join(looked))


def visible(environment: Mapping[str, str], gpus: Sequence[Gpu], names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the variable that limits what this process sees, and the names in it; without one, all ``gpus``.

    As CUDA reads it, the list ends with the first name that is no GPU. Raises ``NoGpu`` if nothing is left.
    """
    name = next((name for name in names if name in environment), names[0])
    given = environment.get(_VISIBLE, environment.get(name))
    if given is None:
        return name, [gpu.id for gpu in gpus]
    found = []
    for word in (word.strip() for word in given.split(",")):
        if find(word, gpus) is None:
            break
        found.append(word)
    if not found:
        raise NoGpu(f"${name} is {given!r}, but the node has {len(gpus)} GPU(s): {', '.join(gpu.id for gpu in gpus)}")
    return name, found


def find(word: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU that ``word`` names: a number, or an identifier or its begin; None if none or several."""
    if word.isdecimal():
        whole = [gpu for gpu in gpus if not gpu.id.startswith(_MIG)]
        return (whole or list(gpus))[int(word)] if int(word) < len(whole or gpus) else None
    exact = [gpu for gpu in gpus if gpu.id == word]
    fitting = exact or [gpu for gpu in gpus if word and gpu.id.startswith(word)]
    return fitting[0] if len(fitting) == 1 else None


def own(names: Sequence[str], local_rank: int, each: int) -> list[str]:
    """Return the names that belong to a rank: ``each`` in turn; ranks share them if there are more ranks."""
    start = local_rank * each % len(names)
    return list(names[start : start + each])


def take(environment: MutableMapping[str, str], local_rank: int, *, first: bool = True, ask: Ask = ask) -> list[Gpu]:
    """Take the GPUs of a rank: set ``GPU`` and ``GPU_FACTS``, and put them ``first`` among those that are visible.

    Before any library of this process uses a GPU. Raises ``NoGpu``.
    """
    gpus, variables = list_gpus(ask)
    name, names = visible(environment, gpus, variables)
    mine = own(names, local_rank, int(environment.get(GPUS_PER_RANK) or 1))
    taken = [gpu for gpu in (find(word, gpus) for word in mine) if gpu is not None]
    environment[GPU] = ",".join(mine)
    environment[GPU_FACTS] = json.dumps([asdict(gpu) for gpu in taken])
    if first:
        environment[_VISIBLE] = ",".join(names)
        others = [] if mine[0].startswith(_MIG) else [word for word in names if word not in mine]
        environment[name] = ",".join([*mine[: 1 if mine[0].startswith(_MIG) else None], *others])
    return taken


def facts(environment: Mapping[str, str] = os.environ) -> list[dict[str, Any]]:
    """Return what ``take`` found out of this rank's GPUs, as the metrics document holds it."""
    try:
        found = json.loads(environment.get(GPU_FACTS, "[]"))
    except ValueError:
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def seen(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the GPUs that this rank saw before it put its own first."""
    return [name for name in environment.get(_VISIBLE, "").split(",") if name]


def message(reason: str, host: str, rank: int, missing: int = 1, size: int = 1) -> str:
    """Return what is said if ``missing`` of ``size`` ranks have no GPU, ``rank`` the first of them."""
    others = f" ({missing} of {size} ranks have none)" if missing > 1 else ""
    return (
        f"hidl: no GPU for rank {rank} on {host}{others}: {reason}\n"
        "next: compute on CPUs with --device cpu, or ask the site's staff why the job sees no GPU"
    )


def _nvidia(text: str, ask: Ask) -> list[Gpu]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == 5]
    whole = [Gpu(row[0], row[1], int(row[2]) if row[2].isdecimal() else None, row[3]) for row in rows]
    if not any(row[4] == "Enabled" for row in rows):
        return whole
    status, listed = ask(_NVIDIA_LIST)
    return _instances(listed, whole) if status == 0 else whole


def _instances(text: str, whole: Sequence[Gpu]) -> list[Gpu]:
    """Return GPUs with each that is divided replaced by its instances.

    ::

        GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-...)
          MIG 3g.20gb     Device  0: (UUID: MIG-...)
    """
    found: list[Gpu] = []
    of: Gpu | None = None
    for line in text.splitlines():
        if match := re.match(r"GPU \d+: .*\(UUID: ([^)]+)\)", line):
            of = next((gpu for gpu in whole if gpu.id == match[1]), None)
            found += [of] if of else []
        elif (match := re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: ([^)]+)\)", line)) and of:
            found = [gpu for gpu in found if gpu is not of]
            size = re.search(r"\.(\d+)gb", match[1])
            memory = int(size[1]) * 1024 if size else None
            found.append(Gpu(match[2], f"{of.model} MIG {match[1]}", memory, of.driver))
    return found


def _of_proc(proc: Path) -> list[Gpu]:
    """Return the GPUs that the kernel's driver shows, where there is no nvidia-smi, as in some containers."""
    try:
        driver = re.search(r"Kernel Module\D*([\d.]+)", (proc / "version").read_text(encoding="utf-8"))
        texts = [file.read_text(encoding="utf-8") for file in sorted(proc.glob("gpus/*/information"))]
    except OSError:
        return []
    found = []
    for number, text in enumerate(texts):
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        model = fields.get("Model", "").strip() or None
        found.append(Gpu(fields.get("GPU UUID", str(number)).strip(), model, None, driver[1] if driver else None))
    return found


def _outcome(tool: Sequence[str], status: int | None, text: str) -> str:
    """Say why a tool listed no GPU, in one line."""
    if status is None:
        return text
    return f"{tool[0]}: {' '.join(text.split())[:200] or 'no GPU listed'} (status {status})"


def _amd(text: str) -> list[Gpu]:
    """Read ``{"card0": {"Card Series": ..., "VRAM Total Memory (B)": ...}, "system": {"Driver version": ...}}``."""
    document = _json(text)
    system = document.get("system", {})
    cards = sorted((int(name[4:]), card) for name, card in document.items() if re.fullmatch(r"card\d+", name))
    found = []
    for number, (_, card) in enumerate(cards):
        size = str(card.get("VRAM Total Memory (B)", ""))
        memory = int(size) // _MIB if size.isdecimal() else None
        model = card.get("Card Series") or card.get("Card series")
        found.append(Gpu(str(number), model, memory, system.get("Driver version")))
    return found


def _intel(text: str) -> list[Gpu]:
    """Read ``{"device_list": [{"device_id": 0, "device_name": ...}, ...]}``."""
    listed = _json(text).get("device_list", [])
    return [Gpu(str(number), each.get("device_name")) for number, each in enumerate(listed)]


def _json(text: str) -> dict[str, Any]:
    """Return the JSON object in a tool's output, which may begin with warnings; empty without one."""
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
