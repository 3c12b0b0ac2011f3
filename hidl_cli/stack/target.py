"""What a lock is made for: an interpreter, a platform, and what computes there."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.errors import MissingPrecondition, ProcessFailed

if TYPE_CHECKING:
    from hidl_cli.site.schema import NodeType, Site
    from hidl_cli.stack.architectures import Accelerator
    from hidl_cli.stack.schema import Stack

#: How PyTorch's own indexes name a build for each of them.
TORCH_BACKENDS: dict[Accelerator, str] = {"cpu": "cpu", "cuda": "cu126", "rocm": "rocm6.4", "xpu": "xpu"}
#: What the GPUs of each vendor are programmed by, as PyTorch names its builds.
_ACCELERATORS: dict[str | None, Accelerator] = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu", None: "cuda"}
#: PyPI has builds of the frameworks for these.
_ON_PYPI = ("cpu", "cuda")
#: What names another index, or chooses one.
_INDEXES = ("UV_TORCH_BACKEND", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")
#: Platforms that locks can be made for on any machine.
PORTABLE_PLATFORMS = ("linux-x86_64", "linux-aarch64")


@dataclass(frozen=True)
class Target:
    """Where a stack is to run.

    ``python`` is the interpreter's tag (``cp311``), ``platform`` system and architecture (``linux-x86_64``), ``glibc``
    the version of the C library there (None: another one), ``interpreter`` the Python that the stack is built on.
    ``gpus``: architectures (``sm_80``, ``gfx90a``) of the GPUs that it is to serve, those of the site's first choice
    first; empty without GPUs, or if they are unknown.
    """

    python: str
    platform: str
    glibc: tuple[int, int] | None
    accelerator: Accelerator
    interpreter: Path
    gpus: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """The machine's architecture, such as x86_64."""
        return self.platform.partition("-")[2]


def detect(site: Site, stack: Stack, platform_name: str | None = None) -> Target:
    """The target of a stack on ``site``, of whose login or compute nodes this machine is one.

    ``platform_name``: that of the nodes, such as linux-aarch64; None: this machine's.

    A stack that computes on processors alone is the same on nodes with GPUs. One with requirements of the user's own
    may use them, whatever it is based on. Where there is no build for the GPUs, it is the stack for processors
    (``has_builds``).

    Raises ``MissingPrecondition`` where the site's interpreter is not there.
    """
    interpreter, tag = _interpreter(site.install.python)
    accelerator = accelerator_of(site.node_of_stacks()) if "gpu" in stack.devices or stack.requirements else "cpu"
    there = platform_name or f"{sys.platform}-{platform.machine()}"
    if not has_builds(site, stack, accelerator, there.partition("-")[2]):
        accelerator = "cpu"
    return Target(
        python=tag,
        platform=there,
        glibc=_glibc(),
        accelerator=accelerator,
        interpreter=interpreter,
        gpus=_gpus(site) if accelerator != "cpu" else (),
    )


def accelerator_of(node: NodeType) -> Accelerator:
    """What computes on such nodes: their GPUs if they have some."""
    return _ACCELERATORS[node.gpu_vendor] if node.gpus else "cpu"


def site_as_for(site: Site, accelerator: str | None) -> Site:
    """The site as ``--device gpu`` makes it, if ``accelerator`` is that of GPUs, and the stacks are not for any."""
    if accelerator in (None, "cpu") or site.node_of_stacks().gpus:
        return site
    return site.with_install(device="gpu")


def has_builds(site: Site, stack: Stack, accelerator: Accelerator, machine: str) -> bool:
    """Has the stack a build for what computes there, of its own or, if it says nothing, on PyPI or a named index?"""
    if stack.has_gpu_variants and accelerator != "cpu":
        return stack.variant(accelerator, machine) is not None
    named = (site.wheels.index_url, *site.wheels.extra_index_urls, *map(os.environ.get, _INDEXES))
    return accelerator in _ON_PYPI or any(named)


def _gpus(site: Site) -> tuple[str, ...]:
    """The architectures of the GPUs in partitions open to all, of one vendor; those that stacks are for come first."""
    first = site.node_of_stacks()
    others = (site.node_types[each.node_type] for each in site.partitions.values() if not each.restricted)
    same = [node.gpu_arch for node in (first, *others) if node.gpu_vendor == first.gpu_vendor and node.gpu_arch]
    return tuple(dict.fromkeys(same))


def _interpreter(configured: str | None) -> tuple[Path, str]:
    """The interpreter's path and tag; nothing is started where it is the one that runs hidl."""
    if configured is None:
        return Path(sys.executable), _tag(f"{sys.implementation.cache_tag}{sys.abiflags}")
    found = shutil.which(Path(os.path.expandvars(configured)).expanduser())
    if found is None:
        raise MissingPrecondition(
            f"Python interpreter {configured!r} not found", hint="fix `install.python` in the site file"
        )
    from hidl_cli import process  # only another Python is asked

    probe = "import sys; print(sys.implementation.cache_tag + sys.abiflags)"
    try:
        answer = process.run([found, "-I", "-c", probe], timeout=60).stdout.strip()
    except ProcessFailed as failure:
        raise MissingPrecondition(
            f"{found} does not work as a Python interpreter: {failure.output.strip()}",
            hint="correct `install.python` in the site's file",
        ) from failure
    return Path(found), _tag(answer)


def _tag(cache_tag: str) -> str:
    """``cpython-311`` -> ``cp311``."""
    return cache_tag.replace("cpython-", "cp")


def _glibc() -> tuple[int, int] | None:
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError, AttributeError):
        return None
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) if name == "glibc" else None
