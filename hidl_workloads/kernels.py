"""GPU architectures of compiled kernels and of installed frameworks; requires neither a GPU nor a driver."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping

from hidl_workloads.findings import Check

#: The check's name in reports.
CHECK = "GPU kernels"
#: Introduces the architectures in the table of wheels if they differ from those of the kernels.
DIFFERS = "unlike the table of wheels, which has"
_NVIDIA = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def serves(architectures: Iterable[str], gpu: str) -> bool:
    """Do kernels for these architectures serve a GPU of architecture ``gpu`` (``sm_86``)?

    Kernels serve GPUs of the same major version from their minor version on, PTX all later ones (CUDA C++ Programming
    Guide, "Application Compatibility"); with a suffix, kernels serve that architecture alone. AMD's serve their own.
    """
    architectures = list(architectures)
    wanted = _NVIDIA.fullmatch(gpu)
    if wanted is None:
        return gpu in architectures
    own = (int(wanted[2]), int(wanted[3]))
    for found in filter(None, map(_NVIDIA.fullmatch, architectures)):
        other = (int(found[2]), int(found[3]))
        older = other <= own and (found[1] == "compute" or other[0] == own[0])
        if other == own or (older and not found[4]):
            return True
    return False


def check(gpus: Iterable[str], expected: Mapping[str, Iterable[str]] | None = None) -> Check:
    """Do the frameworks that this process has imported have kernels for each of these GPUs?

    ``expected``: the architectures that hidl's table of wheels (``recipes/facts/wheels.yaml``) has for a framework; it
    is said whether the kernels are these. Whether they run is not checked: that needs a GPU.
    """
    wanted = list(gpus)
    found = _imported()
    if not found:
        return Check(CHECK, True, "not checked: no framework with a GPU build was imported")
    lacking = {
        framework: [gpu for gpu in wanted if not serves(flags, gpu)]
        for framework, flags in found.items()
        if not all(serves(flags, gpu) for gpu in wanted)
    }
    listed = "; ".join(
        f"{framework}: {' '.join(flags) or 'none'}{_compared(framework, flags, expected or {})}"
        for framework, flags in found.items()
    )
    if lacking:
        missing = "; ".join(f"{framework} has none for {', '.join(gpus)}" for framework, gpus in lacking.items())
        return Check(CHECK, False, f"{missing} ({listed})")
    return Check(CHECK, True, f"for {', '.join(wanted)} ({listed}); not run, because that requires a job with GPUs")


def _compared(framework: str, flags: Iterable[str], expected: Mapping[str, Iterable[str]]) -> str:
    """Return a note that compares a framework (``torch 2.10.0``) with the table of wheels."""
    known = expected.get(framework.partition(" ")[0])
    if known is None:
        return ""
    return ", as in the table of wheels" if set(known) == set(flags) else f", {DIFFERS} {' '.join(known)}"


def _imported() -> dict[str, list[str]]:
    """The architectures of each framework's kernels, by its name and version; builds for processors are left out."""
    found = {}
    torch = sys.modules.get("torch")
    if torch and (torch.version.cuda or torch.version.hip):
        # torch.cuda.get_arch_list() requires a driver.
        found[f"torch {torch.__version__}"] = torch._C._cuda_getArchFlags().split()
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow and (built := tensorflow.sysconfig.get_build_info()).get("is_cuda_build"):
        found[f"tensorflow {tensorflow.__version__}"] = list(built["cuda_compute_capabilities"])
    return found
