"""Installation targets (interpreter, platform and accelerator), and which nodes each stack supports."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.errors import MissingPrecondition, ProcessFailed
from hidl_cli.inputs.overlay import find
from hidl_cli.quoting import sh
from hidl_cli.site.schema import NodeType, Site
from hidl_cli.stack import installation
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.schema import Accelerator, Stack, bare, find_unserved, serves_any

#: Frameworks whose CPU and GPU builds differ in their names or local versions.
_FRAMEWORKS = ("torch", "tensorflow")
_CPU_VERSION = re.compile(r"\+cpu\b")
_BUILD = re.compile(r"-(cuda\d+x|cu\d+|cuda|rocm[\d-]*)")
#: The nodes' architecture if the site file does not specify it.
_MACHINE = "x86_64"
_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: GPU builds of packages by accelerator: the requirement, and the architectures that have wheels on PyPI. The extras
#: add the CUDA 12 libraries, which CUDA 12 and 13 drivers support.
_WHEELS = {
    ("cupy", "cuda"): ("cupy-cuda12x[ctk]", ("x86_64", "aarch64")),
    ("cupy", "rocm"): ("cupy-rocm-7-0", ("x86_64",)),
    ("cudf", "cuda"): ("cudf-cu12", ("x86_64", "aarch64")),
    ("numba", "cuda"): ("numba-cuda[cu12]", ("x86_64", "aarch64")),
}


def names_of(stack: Stack) -> list[str]:
    """Return the names of the packages that the stack requires or builds."""
    required = (_REQUIREMENT_NAME.match(text) for text in stack.requirements)
    return [*stack.packages, *(found[0] for found in required if found), *(build.name for build in stack.builds)]


def cpu_builds(packages: Mapping[str, str]) -> list[str]:
    """Return the CPU builds of frameworks in ``packages``, which maps names to versions (empty if unknown)."""
    frameworks = [(name, version) for name, version in packages.items() if name in _FRAMEWORKS]
    found = [f"{name} {version}" for name, version in frameworks if _CPU_VERSION.search(version)]
    return [*found, *(f"{name} {version}".strip() for name, version in packages.items() if name == "tensorflow-cpu")]


def reason_without_gpu(
    stack: Stack,
    installed: Mapping[str, str],
    needed: Sequence[str],
    node: NodeType | None = None,
    *,
    accelerator: str | None = None,
) -> str | None:
    """Return why the stack cannot run GPU programs that need certain packages, or None if it can.

    Args:
        stack: The stack.
        installed: Installed versions by package. If empty, the versions in the stack file are used.
        needed: Packages that the program needs. If empty, only CPU builds of frameworks and builds for other GPUs count
            as reasons.
        node: Node type with the GPUs to support.
        accelerator: Accelerator that the stack was installed for, or None if unknown.
    """
    model, machine = (accelerator_of(node), node.arch or _MACHINE) if node and node.gpus else (None, _MACHINE)
    variant = stack.variant(model, machine) if model else None
    there = stack.on(model, machine) if model else stack
    packages = dict(installed) or dict.fromkeys(names_of(there), "")
    builds = cpu_builds(packages)
    compiled = {build.name for build in there.builds}
    for need in needed:
        if need in compiled:
            if accelerator == "cpu" or (model and not (variant and need in variant.builds)):
                return f"its {need} was compiled for CPUs only"
            continue
        if any(build.split()[0].removesuffix("-cpu") == need for build in builds):
            return f"its {' and '.join(builds)} is a CPU build"
        if not any(_is_build_of(name, need) for name in packages):
            return f"it has no {need}"
    if builds and not needed:
        return f"its {' and '.join(builds)} is a CPU build"
    frameworks = [name for name in packages if name in _FRAMEWORKS]
    if not installed and frameworks and "gpu" not in stack.devices:
        return f"it only supports {' and '.join(stack.devices)}"
    versions = {name: installed[name] for name in frameworks if name in installed}
    return _other_gpus(versions, node) if node else None


def _other_gpus(versions: Mapping[str, str], node: NodeType) -> str | None:
    """Return why these framework versions do not support the nodes' GPUs, or None if they do."""
    if foreign := next((f"{name} {version}" for name, version in versions.items() if _is_foreign(version, node)), None):
        return f"its {foreign} was not built for the GPUs of the nodes ({node.gpu_model or node.gpu_arch})"
    gpus = [node.gpu_arch] if node.gpu_arch else []
    lacking = (find_unserved(name, version, gpus, node.arch) for name, version in versions.items())
    return next((str(each) for each in lacking if each), None)


def install_hint(stack: Stack, needed: Sequence[str], site: Site, node: NodeType) -> str | None:
    """Return the commands that install the ``needed`` packages for these nodes and then use them.

    Returns None if there are no suitable wheels.
    """
    model, machine = accelerator_of(node) if node.gpus else "cuda", node.arch or _MACHINE
    options = "" if site.name == "local" else f" --site {sh(site.name)}"
    options += " --device gpu" if node.gpus and not site.node_of_stacks().gpus else ""
    if stack.on_gpus and _serves(load_stack(stack.on_gpus), needed, model, node.gpu_arch, machine):
        return f"hidl install {sh(stack.on_gpus)}{options}, then --stack {sh(stack.on_gpus)}"
    own = names_of(stack.on(model, machine)) if stack.variant(model, machine) else []
    lacking = [need for need in needed if not any(_is_build_of(name, need) for name in own)]
    if own and not lacking:
        return f"hidl install {sh(stack.name)}{options}"
    wheels = [_WHEELS.get((need, model), ("", ())) for need in lacking if need not in _FRAMEWORKS]
    if not all(machine in machines for _, machines in wheels):
        return None
    if wheels:
        name = f"{stack.name}-gpu"
        with_ = " ".join(f"--with {sh(wheel)}" for wheel, _ in wheels)
        return f"hidl install {sh(stack.name)} {with_} --as {sh(name)}{options}, then --stack {sh(name)}"
    if "gpu" in stack.devices and not stack.has_gpu_variants and machine in ("x86_64", "aarch64"):
        install = f"hidl install {sh(stack.name)}{options}"
        other = f"UV_TORCH_BACKEND={TORCH_BACKENDS[model]} {install} (or another backend that the driver supports)"
        return install if node.gpus and model == "cuda" else other
    return None


def _serves(stack: Stack, needed: Sequence[str], model: Accelerator, gpu: str | None, machine: str) -> bool:
    """Return True if the stack has a variant with all ``needed`` packages, and its frameworks support the GPU."""
    from packaging.requirements import Requirement

    variant = stack.variant(model, machine)
    names = names_of(stack.on(model, machine))
    if variant is None or not all(any(_is_build_of(name, need) for name in names) for need in needed):
        return False
    required = [Requirement(bare(text)) for text in variant.requirements]
    return all(
        serves_any(each.name, str(each.specifier), gpu, machine) for each in required if each.name in _FRAMEWORKS
    )


def _is_foreign(version: str, node: NodeType) -> bool:
    """Return True if the version is a build for another vendor's GPUs. PyPI's builds are for CUDA."""
    build = next((name for name in ("rocm", "xpu") if f"+{name}" in version), "cuda")
    return node.gpu_vendor is not None and build != accelerator_of(node)


def _is_build_of(name: str, need: str) -> bool:
    """Return True if ``name`` is the package ``need`` or a build of it, such as cupy-cuda12x."""
    return name == need or (name.startswith(need) and _BUILD.fullmatch(name.removeprefix(need)) is not None)


#: The builds in PyTorch's own indexes, by accelerator.
TORCH_BACKENDS: dict[Accelerator, str] = {"cpu": "cpu", "cuda": "cu126", "rocm": "rocm6.4", "xpu": "xpu"}
#: Accelerators by GPU vendor.
_ACCELERATORS: dict[str | None, Accelerator] = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu", None: "cuda"}
#: Accelerators for which PyPI has framework builds.
_ON_PYPI = ("cpu", "cuda")
#: Environment variables that add or select a package index.
_INDEXES = ("UV_TORCH_BACKEND", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")


@dataclass(frozen=True)
class Target:
    """An installation target.

    Attributes:
        python: Tag of the interpreter, such as ``cp311``.
        platform: System and architecture, such as ``linux-x86_64``.
        glibc: Version of glibc, or None for another C library.
        accelerator: Accelerator of the nodes.
        interpreter: Path of the Python interpreter.
        gpus: Architectures of the GPUs to support (``sm_80``, ``gfx90a``), in order of preference; empty if unknown.
    """

    python: str
    platform: str
    glibc: tuple[int, int] | None
    accelerator: Accelerator
    interpreter: Path
    gpus: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """The architecture, such as x86_64."""
        return self.platform.partition("-")[2]

    @property
    def markers(self) -> dict[str, str]:
        """Values of environment markers (PEP 508) that may differ from those of this Python."""
        found = re.match(r"cp(\d)(\d+)", self.python)
        version = f"{found[1]}.{found[2]}" if found else ""
        markers = {"platform_machine": self.machine}
        if version and version != ".".join(platform.python_version_tuple()[:2]):
            # The patch release is unknown. It is assumed to be late, because requirements only exclude early ones.
            markers |= {"python_version": version, "python_full_version": f"{version}.99"}
        return markers


def detect(site: Site, stack: Stack, platform_name: str | None = None) -> Target:
    """Detect the target of a stack on this machine, a login or compute node of ``site``.

    The accelerator is ``cpu`` if the stack does not support GPUs or has no build for the site's GPUs (see
    ``has_builds``). Stacks with additional requirements may always use GPUs.

    Args:
        site: The site.
        stack: The stack.
        platform_name: Platform of the nodes, such as linux-aarch64 (default: this machine's platform).

    Raises:
        MissingPrecondition: The site's interpreter is missing or does not work.
    """
    interpreter, tag = _interpreter(site.install.python)
    accelerator = accelerator_of(site.node_of_stacks()) if "gpu" in stack.devices or stack.requirements else "cpu"
    target_platform = platform_name or f"{sys.platform}-{platform.machine()}"
    if not has_builds(site, stack, accelerator, target_platform.partition("-")[2]):
        accelerator = "cpu"
    return Target(
        python=tag,
        platform=target_platform,
        glibc=_glibc(),
        accelerator=accelerator,
        interpreter=interpreter,
        gpus=_gpus(site) if accelerator != "cpu" else (),
    )


def accelerator_of(node: NodeType) -> Accelerator:
    """Return a node type's accelerator, which is ``cpu`` if it has no GPUs."""
    return _ACCELERATORS[node.gpu_vendor] if node.gpus else "cpu"


def site_for_accelerator(site: Site, accelerator: str | None) -> Site:
    """Return the site, switched to ``--device gpu`` if ``accelerator`` is a GPU but its stacks default to CPUs."""
    if accelerator in (None, "cpu") or site.node_of_stacks().gpus:
        return site
    return site.with_install(device="gpu")


def has_builds(site: Site, stack: Stack, accelerator: Accelerator, machine: str) -> bool:
    """Return True if the stack has a build for the accelerator, as a variant, on PyPI, or on an additional index."""
    if stack.has_gpu_variants and accelerator != "cpu":
        return stack.variant(accelerator, machine) is not None
    named = (site.wheels.index_url, *site.wheels.extra_index_urls, *map(os.environ.get, _INDEXES))
    return accelerator in _ON_PYPI or any(named)


def _gpus(site: Site) -> tuple[str, ...]:
    """Return the GPU architectures of the nodes that stacks are installed for, and then of unrestricted partitions.

    GPUs of a vendor other than the former nodes' are left out.
    """
    first = site.node_of_stacks()
    others = (site.node_types[each.node_type] for each in site.partitions.values() if not each.restricted)
    same = [node.gpu_arch for node in (first, *others) if node.gpu_vendor == first.gpu_vendor and node.gpu_arch]
    return tuple(dict.fromkeys(same))


def _interpreter(configured: str | None) -> tuple[Path, str]:
    """Return the interpreter's path and tag. It is only started if it is not hidl's own interpreter."""
    if configured is None:
        return Path(sys.executable), _tag(f"{sys.implementation.cache_tag}{sys.abiflags}")
    found = shutil.which(Path(os.path.expandvars(configured)).expanduser())
    if found is None:
        raise MissingPrecondition(
            f"Python interpreter {configured!r} not found", hint="fix `install.python` in the site file"
        )
    from hidl_cli import process  # hidl's own interpreter need not be started

    probe = "import sys; print(sys.implementation.cache_tag + sys.abiflags)"
    try:
        output = process.run([found, "-I", "-c", probe], timeout=60).stdout.strip()
    except ProcessFailed as failure:
        raise MissingPrecondition(
            f"{found} does not work as a Python interpreter: {failure.output.strip()}",
            hint="fix `install.python` in the site file",
        ) from failure
    return Path(found), _tag(output)


def _tag(cache_tag: str) -> str:
    """Convert ``cpython-311`` to ``cp311``."""
    return cache_tag.replace("cpython-", "cp")


def _glibc() -> tuple[int, int] | None:
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError, AttributeError):
        return None
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) if name == "glibc" else None


# The installations that a command applies to.


def select_installations(site: Site, prefix: str | None, names: list[str], *, every: bool) -> list[Installation]:
    """Return the site's installations that are in use, or those of the named stacks.

    ``every`` includes installations not in use. See ``installation.roots`` for ``prefix``. Raises
    ``MissingPrecondition`` if none is found or if one in use is damaged.
    """
    for name in names:
        find("stack", name)
    roots = installation.roots(site, prefix)
    for root in roots:
        for stack in names or [each.name for each in (root / site.name).glob("*")]:
            used = installation.current(root / site.name / stack)
            if used is not None and installation.at(used) is None:
                raise MissingPrecondition(
                    f"the installation {used} is damaged: its manifest or its Python is missing or invalid",
                    hint=f"install it again: {installation.install_command(stack, site, root)}",
                )
    found = [
        each
        for root in roots
        for each in installation.list_all(root)
        if each.manifest["site"] == site.name
        and (every or each.is_current)
        and (not names or each.prefix.parent.name in names)
    ]
    missing = [name for name in names if name not in {each.prefix.parent.name for each in found}]
    if missing or not found:
        what = f"stack {missing[0]} is not" if missing else "no stack is"
        hint = (
            installation.install_command(missing[0], site, roots[-1])
            if missing
            else "hidl stack list shows the available stacks"
        )
        raise MissingPrecondition(f"{what} installed for site {site.name} in {' or '.join(map(str, roots))}", hint=hint)
    return found
