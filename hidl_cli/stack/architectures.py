"""Which GPUs the kernels in a wheel serve: ``recipes/facts/wheels.yaml``, read from the wheels themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from hidl_cli import paths
from hidl_workloads.kernels import serves

#: What computes on a node: its processors, or its GPUs by what they are programmed by, as PyTorch names its builds.
Accelerator = Literal["cpu", "cuda", "rocm", "xpu"]


@dataclass(frozen=True)
class Wheel:
    """A release of ``package`` on PyPI. ``architectures``: sm_* (kernels) and compute_* (PTX, for newer GPUs too)."""

    package: str
    version: str
    platform: str
    cuda: str
    architectures: tuple[str, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The version as numbers."""
        return tuple(int(part) for part in self.version.split("."))


@cache
def load_wheels() -> tuple[Wheel, ...]:
    """Return all rows."""
    import yaml

    text = (paths.shipped() / "recipes" / "facts" / "wheels.yaml").read_text(encoding="utf-8")
    rows = yaml.safe_load(text)["wheels"]
    return tuple(Wheel(**{**row, "architectures": tuple(row["architectures"])}) for row in rows)


@dataclass(frozen=True)
class Unserved:
    """A GPU that a release has no kernels for; ``last``: the last release that serves it and the others, if any."""

    wheel: Wheel
    gpu: str
    last: Wheel | None

    def __str__(self) -> str:
        """``its torch 2.13.0 has kernels for ..., and none for sm_70; the last release ... is 2.10.0``."""
        listed = ", ".join(self.wheel.architectures)
        return f"its {self.wheel.package} {self.wheel.version} has kernels for {listed}, and none for {self.gpu}; " + (
            f"the last release on PyPI that serves it is {self.last.version}"
            if self.last
            else "no release known here serves it"
        )


def find_wheel(package: str, version: str, machine: str) -> Wheel | None:
    """Return the row of a release for a machine, such as aarch64; None if the table lacks it."""
    return next((wheel for wheel in _releases(package, machine) if wheel.version == version), None)


def last_for_cuda(package: str, major: int, machine: str) -> Wheel | None:
    """Return the row of the last release that is built for CUDA ``major``; None if the table has none."""
    rows = [wheel for wheel in _releases(package, machine) if wheel.cuda.partition(".")[0] == str(major)]
    return max(rows, key=lambda wheel: wheel.order, default=None)


def find_unserved(package: str, version: str, gpus: Sequence[str], machine: str | None) -> Unserved | None:
    """Return which of these GPUs the release has no kernels for; None if it serves them.

    ``gpus``: architectures; the first counts, the others where one release serves all of them. ``machine``: such as
    aarch64 (None: x86_64). A release that the table lacks, a build of another index (``2.13.0+cu126``), and GPUs of
    other vendors than NVIDIA are not judged.
    """
    wanted = [gpu for gpu in gpus if gpu.startswith("sm_")]
    if not wanted:
        return None
    machine = machine or "x86_64"
    this = find_wheel(package, version, machine)
    if this is None:
        return None
    rows = _releases(package, machine)
    serving = _serving(rows, wanted)
    if not serving:
        wanted, serving = wanted[:1], _serving(rows, wanted[:1])
    lacking = next((gpu for gpu in wanted if not serves(this.architectures, gpu)), None)
    return Unserved(this, lacking, max(serving, key=lambda wheel: wheel.order, default=None)) if lacking else None


def serves_any(package: str, versions: str, gpu: str | None, machine: str) -> bool:
    """Return whether a release serves the GPU; true where the table cannot tell.

    ``versions``: a specifier (PEP 440), empty for any. ``gpu``: an architecture, None if unknown.
    """
    from packaging.specifiers import SpecifierSet

    rows = _releases(package, machine)
    if not rows or gpu is None or not gpu.startswith("sm_"):
        return True
    return any(wheel.version in SpecifierSet(versions) for wheel in _serving(rows, [gpu]))


def _releases(package: str, machine: str) -> list[Wheel]:
    """The rows of a package's wheels for a machine."""
    return [wheel for wheel in load_wheels() if (wheel.package, wheel.platform) == (package, f"linux-{machine}")]


def _serving(rows: Sequence[Wheel], gpus: Sequence[str]) -> list[Wheel]:
    """The releases that serve all of these GPUs."""
    return [wheel for wheel in rows if all(serves(wheel.architectures, gpu) for gpu in gpus)]
