"""What a stack's packages compute on: by its file, and by the builds that are installed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hidl_cli.quoting import sh
from hidl_cli.site.schema import NodeType, Site
from hidl_cli.stack.architectures import Accelerator, find_unserved, serves_any
from hidl_cli.stack.load import load_stack
from hidl_cli.stack.requirement import bare
from hidl_cli.stack.schema import Stack
from hidl_cli.stack.target import TORCH_BACKENDS, accelerator_of

#: Frameworks whose builds for processors and for GPUs are told apart by the name or the local version.
_FRAMEWORKS = ("torch", "tensorflow")
_CPU_VERSION = re.compile(r"\+cpu\b")
_BUILD = re.compile(r"-(cuda\d+x|cu\d+|cuda|rocm[\d-]*)")
#: Where a site's file does not say what its nodes are.
_MACHINE = "x86_64"
_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: What to install for each package, by the GPUs' programming model: a requirement, and the machines with such wheels on
#: PyPI. The extras bring what else is needed of CUDA 12, which the drivers of CUDA 12 and 13 serve.
_WHEELS = {
    ("cupy", "cuda"): ("cupy-cuda12x[ctk]", ("x86_64", "aarch64")),
    ("cupy", "rocm"): ("cupy-rocm-7-0", ("x86_64",)),
    ("cudf", "cuda"): ("cudf-cu12", ("x86_64", "aarch64")),
    ("numba", "cuda"): ("numba-cuda[cu12]", ("x86_64", "aarch64")),
}


def names_of(stack: Stack) -> list[str]:
    """Return the names of the packages that the stack's file requires or builds."""
    required = (_REQUIREMENT_NAME.match(text) for text in stack.requirements)
    return [*stack.packages, *(found[0] for found in required if found), *(build.name for build in stack.builds)]


def cpu_builds(packages: Mapping[str, str]) -> list[str]:
    """Return the frameworks among ``packages`` (name -> version, or empty) that are built for processors alone."""
    found = [f"{name} {version}" for name, version in packages.items() if name in _FRAMEWORKS and _cpu(version)]
    return [*found, *(f"{name} {version}".strip() for name, version in packages.items() if name == "tensorflow-cpu")]


def reason_without_gpu(
    stack: Stack,
    installed: Mapping[str, str],
    needed: Sequence[str],
    node: NodeType | None = None,
    *,
    accelerator: str | None = None,
) -> str | None:
    """Return why the stack serves no program that computes on GPUs with the packages ``needed``; None if it does.

    ``installed``: versions by name; empty if unknown, and the stack's file decides. ``node``: whose GPUs it must serve.
    ``accelerator``: what it was installed for; None: unknown. Without ``needed``, only a framework that is built for
    processors alone, or for other GPUs, is a reason.
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
                return f"its {need} is compiled for processors alone"
            continue
        if any(build.split()[0].removesuffix("-cpu") == need for build in builds):
            return f"its {_listed(builds)} is built for processors alone"
        if not any(_is(name, need) for name in packages):
            return f"it has no {need}"
    if builds and not needed:
        return f"its {_listed(builds)} is built for processors alone"
    frameworks = [name for name in packages if name in _FRAMEWORKS]
    if not installed and frameworks and "gpu" not in stack.devices:
        return f"it computes on {' and '.join(stack.devices)} alone"
    versions = {name: installed[name] for name in frameworks if name in installed}
    return _other_gpus(versions, node) if node else None


def _other_gpus(versions: Mapping[str, str], node: NodeType) -> str | None:
    """Return why frameworks of these versions do not serve the GPUs of such nodes; None if they do."""
    if foreign := next((f"{name} {version}" for name, version in versions.items() if _is_foreign(version, node)), None):
        return f"its {foreign} is not built for the GPUs of the nodes ({node.gpu_model or node.gpu_arch})"
    gpus = [node.gpu_arch] if node.gpu_arch else []
    lacking = (find_unserved(name, version, gpus, node.arch) for name, version in versions.items())
    return next((str(each) for each in lacking if each), None)


def install_hint(stack: Stack, needed: Sequence[str], site: Site, node: NodeType) -> str | None:
    """Return the commands that install and use what the stack lacks on such nodes; None if no wheels do."""
    model, machine = accelerator_of(node) if node.gpus else "cuda", node.arch or _MACHINE
    at = "" if site.name == "local" else f" --site {sh(site.name)}"
    at += " --device gpu" if node.gpus and not site.node_of_stacks().gpus else ""
    if stack.on_gpus and _serves(load_stack(stack.on_gpus), needed, model, node.gpu_arch, machine):
        return f"hidl install {sh(stack.on_gpus)}{at}, then --stack {sh(stack.on_gpus)}"
    own = names_of(stack.on(model, machine)) if stack.variant(model, machine) else []
    lacking = [need for need in needed if not any(_is(name, need) for name in own)]
    if own and not lacking:
        return f"hidl install {sh(stack.name)}{at}"
    wheels = [_WHEELS.get((need, model), ("", ())) for need in lacking if need not in _FRAMEWORKS]
    if not all(machine in machines for _, machines in wheels):
        return None
    if wheels:
        name = f"{stack.name}-gpu"
        with_ = " ".join(f"--with {sh(wheel)}" for wheel, _ in wheels)
        return f"hidl install {sh(stack.name)} {with_} --as {sh(name)}{at}, then --stack {sh(name)}"
    if "gpu" in stack.devices and not stack.has_gpu_variants and machine in ("x86_64", "aarch64"):
        install = f"hidl install {sh(stack.name)}{at}"
        other = f"UV_TORCH_BACKEND={TORCH_BACKENDS[model]} {install} (or what the site's driver serves)"
        return install if node.gpus and model == "cuda" else other
    return None


def _serves(stack: Stack, needed: Sequence[str], model: Accelerator, gpu: str | None, machine: str) -> bool:
    """Does the stack have a variant for such nodes with the packages ``needed``, in releases for their GPUs?"""
    from packaging.requirements import Requirement

    variant = stack.variant(model, machine)
    names = names_of(stack.on(model, machine))
    if variant is None or not all(any(_is(name, need) for name in names) for need in needed):
        return False
    required = [Requirement(bare(text)) for text in variant.requirements]
    return all(
        serves_any(each.name, str(each.specifier), gpu, machine) for each in required if each.name in _FRAMEWORKS
    )


def _is_foreign(version: str, node: NodeType) -> bool:
    """Is a framework of this version built for GPUs of another vendor than the nodes'? PyPI's are built for CUDA."""
    build = next((name for name in ("rocm", "xpu") if f"+{name}" in version), "cuda")
    return node.gpu_vendor is not None and build != accelerator_of(node)


def _cpu(version: str) -> bool:
    return bool(_CPU_VERSION.search(version))


def _is(name: str, need: str) -> bool:
    """Is ``name`` the package ``need``, or a build of it, such as cupy-cuda12x?"""
    return name == need or (name.startswith(need) and _BUILD.fullmatch(name.removeprefix(need)) is not None)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(words)
