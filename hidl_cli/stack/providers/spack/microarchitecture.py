"""The microarchitecture that packages are built for, as named by archspec, based on the processors in the site file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archspec.cpu import Microarchitecture

    from hidl_cli.site.schema import Compiler, NodeType, Site

# Code names come before model numbers, and the first pattern that matches decides. archspec has no name for Emerald
# Rapids, which can execute code built for Sapphire Rapids.
_NAMES: tuple[tuple[str, str], ...] = (
    (r"\bVera\b|SW26010", ""),
    (r"\bGrace\b|Graviton ?4", "neoverse_v2"),
    (r"Graviton ?3", "neoverse_v1"),
    (r"\bAltra\b|Graviton ?2", "neoverse_n1"),
    (r"A64FX", "a64fx"),
    (r"ThunderX2", "thunderx2"),
    (r"POWER ?10", "power10le"),
    (r"POWER ?9", "power9le"),
    (r"POWER ?8", "power8le"),
    (r"Turin|Zen 5|EPYC 9\w\w5", "zen5"),
    (r"Genoa|Bergamo|Siena|Zen 4|MI300A|EPYC [89]\w\w4", "zen4"),
    (r"Milan|Trento|Zen 3|3rd Gen EPYC|EPYC 7\w\w3|EPYC 7A53", "zen3"),
    (r"Rome|Zen 2|2nd Gen EPYC|EPYC 7\w\w2", "zen2"),
    (r"Naples|EPYC 7\w\w1", "zen"),
    (r"Sapphire Rapids|Emerald Rapids|Xeon (CPU )?Max|(Platinum|Gold|Silver) [3-8][45]\d\d", "sapphirerapids"),
    (r"Ice Lake|(Platinum|Gold|Silver) [3-8]3\d\d", "icelake"),
    (r"Cascade Lake|(Platinum|Gold|Silver) [3-9]2\d\d", "cascadelake"),
    (r"Skylake|(Platinum|Gold|Silver) [3-8]1\d\d", "skylake_avx512"),
    (r"Knights Landing|Phi 72\d\d", "mic_knl"),
    (r"Broadwell|E[57]-\d{4}\w* v4", "broadwell"),
    (r"Haswell|E[57]-\d{4}\w* v3", "haswell"),
    (r"Ivy Bridge|E[57]-\d{4}\w* v2", "ivybridge"),
    (r"Sandy Bridge|E5-2[46]\d\d\b", "sandybridge"),
)
# Spack's compiler packages, with the names that archspec uses. Spack has no flags for other compilers (cce) and accepts
# any target for them.
_COMPILERS = {
    "gcc": "gcc",
    "llvm": "clang",
    "aocc": "aocc",
    "nvhpc": "nvhpc",
    "intel-oneapi-compilers": "oneapi",
    "intel-oneapi-compilers-classic": "intel",
}


def of_node(node: NodeType) -> str | None:
    """Return archspec's name for a node's processor, or None if its model is unknown or not named by archspec."""
    from archspec import cpu

    if node.detect and node.cpu is None:
        return str(cpu.host().name)
    for pattern, name in _NAMES:
        if re.search(pattern, node.cpu or ""):
            fits = name and (node.arch is None or family(name) == node.arch)
            return name if fits else None
    return None


def family(name: str) -> str:
    """Return the generic architecture of a microarchitecture, such as x86_64, or ``name`` itself if it is unknown."""
    from archspec import cpu

    return str(cpu.TARGETS[name].family) if name in cpu.TARGETS else name


def runs_on(built: str, host: str) -> bool | None:
    """Return whether ``host`` can execute code built for ``built``, or None if archspec lacks one of the names."""
    from archspec import cpu

    if built not in cpu.TARGETS or host not in cpu.TARGETS:
        return None
    return bool(cpu.TARGETS[built] <= cpu.TARGETS[host])


def host() -> str:
    """Return archspec's name for this machine's processor."""
    from archspec import cpu

    return str(cpu.host().name)


def choose(site: Site) -> str | None:
    """Return the target of a site's packages: the newest one that all nodes can execute and the compiler supports.

    Nodes of another generic architecture and nodes in partitions that are not open to all users do not count. The
    result is None if neither the processor nor the architecture of the nodes that stacks are installed for is known.
    """
    from archspec import cpu

    if site.spack.target:
        return site.spack.target
    node = site.node_of_stacks()
    first = of_node(node)
    if first is None:
        return node.arch
    open_nodes = [site.node_types[one.node_type] for one in site.partitions.values() if not one.restricted]
    others = [name for other in open_nodes if (name := of_node(other)) and family(name) == family(first)]
    found = _common(cpu.TARGETS[first], [cpu.TARGETS[name] for name in others])
    compiler = site.compilers.get(site.default_compiler or "")
    return str((_supported(found, compiler) if compiler else found).name)


def unknown_nodes(site: Site) -> list[str]:
    """Return the node types in open partitions that ``choose`` ignores because their processors are unknown."""
    node = site.node_of_stacks()
    if site.spack.target or of_node(node) is None:
        return []
    names = dict.fromkeys(one.node_type for one in site.partitions.values() if not one.restricted)
    nodes = ((name, site.node_types[name]) for name in names)
    return [name for name, other in nodes if of_node(other) is None and other.arch in (None, node.arch)]


def _common(first: Microarchitecture, others: Iterable[Microarchitecture]) -> Microarchitecture:
    """Return the most specific target among ``first`` and its ancestors that all others can execute."""
    candidates = [one for one in (first, *first.ancestors) if all(one <= other for other in others)]
    return max(candidates, key=lambda one: len(one.ancestors))


def _supported(target: Microarchitecture, compiler: Compiler) -> Microarchitecture:
    """Return the most specific target among ``target`` and its ancestors that the compiler supports."""
    from archspec.cpu import UnsupportedMicroarchitecture

    name = _COMPILERS.get(compiler.package)
    if name is None or compiler.version is None:
        return target
    for one in sorted((target, *target.ancestors), key=lambda one: len(one.ancestors), reverse=True):
        try:
            with warnings.catch_warnings():  # archspec warns about Intel compilers on AMD processors
                warnings.simplefilter("ignore")
                if name in one.compilers and one.optimization_flags(name, compiler.version):
                    return one
        except UnsupportedMicroarchitecture:
            continue
    return target.family
