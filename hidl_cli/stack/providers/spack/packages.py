"""``packages:`` of an environment: what the site has already, what must hold, and which compiler and MPI are used.

Pure functions of a site and a stack: what the site's file does not know is left out, and told as a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hidl_cli.mpi import TRAITS, Family
from hidl_cli.site.probes.compilers import PROGRAMS
from hidl_cli.stack.providers.spack import microarchitecture

if TYPE_CHECKING:
    from hidl_cli.site.schema import Mpi, Site
    from hidl_cli.site.software import Compiler, External
    from hidl_cli.stack.schema import Stack


@dataclass(frozen=True)
class Chosen:
    """What an environment is concretized with.

    ``mpi`` and ``version`` are the family of the MPI library and, where it is there already, its version; ``gaps``
    tell what the site's file would have to say for more.
    """

    packages: Mapping[str, Any]
    mpi: Family
    version: str | None
    external_mpi: bool
    gaps: tuple[str, ...] = field(default=())


def choose(site: Site, stack: Stack) -> Chosen:
    """The packages of ``stack`` on ``site``."""
    gaps: list[str] = [
        f"the processor of node type {name} is unknown, and may not execute what is built for that of the others"
        for name in microarchitecture.unknown_nodes(site)
    ]
    packages: dict[str, Any] = {"all": _for_all(site)}
    for name, external in site.externals.items():
        entry = _external(name, external, gaps)
        if entry:
            packages[name] = entry
    for entry_name, entry in _compilers(site, gaps).items():
        packages[entry_name] = entry
    family, version, is_external = _mpi(site, stack, packages, gaps)
    for constraints in (stack.spack.require if stack.spack else {}, site.spack.require):
        for name, wanted in constraints.items():
            required = packages.setdefault(name, {}).setdefault("require", [])
            required.extend(one for one in wanted if one not in required)
    return Chosen(packages, family, version, is_external, tuple(gaps))


def compilers_of_old(site: Site) -> list[dict[str, Any]]:
    """The same compilers as Spack 0.23 reads them from ``compilers:``; operating system and target are any."""
    found = []
    for name in _order(site):
        compiler = site.compilers[name]
        if compiler.version is None:
            continue
        c, cxx, fortran = _programs(compiler)
        found.append(
            {
                "compiler": {
                    "spec": f"{_OLD_NAMES.get(compiler.package, compiler.package)}@={compiler.version}",
                    "paths": {"cc": c, "cxx": cxx, "f77": fortran, "fc": fortran},
                    "operating_system": "OPERATING_SYSTEM",
                    "target": "any",
                    "modules": list(compiler.modules),
                }
            }
        )
    return found


_OLD_NAMES = {"llvm": "clang", "intel-oneapi-compilers": "oneapi", "intel-oneapi-compilers-classic": "intel"}


def _for_all(site: Site) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if target := microarchitecture.choose(site):
        chosen["require"] = [f"target={target}"]
    return chosen | {"variants": _gpu_variants(site)}


def _gpu_variants(site: Site) -> list[str]:
    """The variants for the GPUs of the nodes that stacks are installed for."""
    node = site.node_of_stacks()
    # If the number of GPUs is unknown, their architecture shows that the nodes have some.
    arch = node.gpu_arch if node.gpu_arch and node.gpus != 0 else ""
    if arch.startswith("sm_"):
        return ["+cuda", f"cuda_arch={arch.removeprefix('sm_')}", "~rocm"]
    if arch.startswith("gfx"):
        return ["~cuda", "+rocm", f"amdgpu_target={arch}"]
    return ["~cuda", "~rocm"]


def _variants_of_mpi(site: Site, library: Mpi) -> str:
    """The variants of the site's MPI library: those in its file, else for the GPUs if the library is made for them.

    Spack links Cray MPICH's GPU transport layer (GTL) only with ``+cuda`` or ``+rocm`` and the GPUs' architecture.
    """
    if library.variants or library.family not in _FOR_GPUS:
        return library.variants
    chosen = _gpu_variants(site)
    if not _FOR_GPUS[library.family]:
        chosen = [variant for variant in chosen if "=" not in variant]
    return " ".join(chosen) if any(variant.startswith("+") for variant in chosen) else ""


#: MPI libraries that a site installs for its GPUs: whether their packages have the variants of the GPUs' architectures.
_FOR_GPUS: Mapping[Family, bool] = {"cray-mpich": True, "mvapich-plus": True, "mvapich2-gdr": False}


def _external(name: str, external: External, gaps: list[str]) -> dict[str, Any] | None:
    if external.version is None or not (external.prefix or external.modules):
        what = "version" if external.version is None else "prefix"
        gaps.append(f"the {what} of {name} is unknown")
        return None
    spec = f"{name}@{external.version} {external.variants}".strip()
    return {"externals": [_placed({"spec": spec}, external)], "buildable": external.buildable}


def _placed(entry: dict[str, Any], where: External | Compiler | Mpi) -> dict[str, Any]:
    """The entry with the place of what it describes."""
    if where.prefix:
        entry["prefix"] = where.prefix
    if where.modules:
        entry["modules"] = list(where.modules)
    return entry


def _order(site: Site) -> list[str]:
    """The names of the compilers, the default one first."""
    return sorted(site.compilers, key=lambda name: name != site.default_compiler)


def _compilers(site: Site, gaps: list[str]) -> dict[str, Any]:
    """Compilers are packages; several versions of one are several externals of it."""
    packages: dict[str, Any] = {}
    for name in _order(site):
        compiler = site.compilers[name]
        if compiler.version is None:
            gaps.append(f"the version of compiler {name} is unknown")
            continue
        c, cxx, fortran = _programs(compiler)
        programs = {"c": c, "cxx": cxx, **({"fortran": fortran} if fortran else {})}
        spec = f"{compiler.package}@{compiler.version}"
        if compiler.package == "gcc":
            spec += f" languages='{','.join({'cxx': 'c++'}.get(language, language) for language in programs)}'"
        entry = _placed({"spec": spec}, compiler)
        entry["extra_attributes"] = {"compilers": programs}
        packages.setdefault(compiler.package, {"externals": [], "buildable": False})["externals"].append(entry)
    if not site.compilers:
        gaps.append("its compilers are unknown")
    elif site.default_compiler and packages:
        default = site.compilers[site.default_compiler]
        if default.version is not None:
            for language in ("c", "cxx", "fortran") if default.fortran else ("c", "cxx"):
                # Where a package refuses this version, another of the same compiler serves as well.
                version = f"{default.package}@{default.version}"
                packages[language] = {"require": [default.package], "prefer": [version]}
            if not default.fortran:
                gaps.append(f"compiler {site.default_compiler} names no `fortran`, and what needs one cannot be built")
    return packages


def _programs(compiler: Compiler) -> tuple[str, str, str | None]:
    """The paths of the compilers for C, C++ and Fortran; mere names where modules put them on PATH."""
    c, cxx, fortran = PROGRAMS.get(compiler.package, ("cc", "c++", "fc"))

    def placed(given: str | None, usual: str) -> str:
        name = given or usual
        return f"{compiler.prefix}/bin/{name}" if compiler.prefix and "/" not in name else name

    with_fortran = compiler.fortran is not None
    return placed(compiler.c, c), placed(compiler.cxx, cxx), placed(compiler.fortran, fortran) if with_fortran else None


def _mpi(site: Site, stack: Stack, packages: dict[str, Any], gaps: list[str]) -> tuple[Family, str | None, bool]:
    """Choose the MPI library: the site's default one, else the stack's; taken as it is, or built."""
    name = site.default_mpi
    mine = site.mpi.get(name) if name else None
    family: Family = mine.family if mine else stack.mpi
    package = TRAITS[family].spack
    entry: dict[str, Any] = dict(packages.get(package, {}))
    usable = mine is not None and mine.version is not None and _is_placed(site, mine)
    if mine is not None and usable:
        spec = f"{package}@{mine.version} {_variants_of_mpi(site, mine)}".strip()
        entry |= {"externals": [_placed({"spec": spec}, mine)], "buildable": False}
        packages["mpi"] = {"require": [f"{package}@{mine.version}"], "buildable": False}
    else:
        if TRAITS[family].of_site_only or (mine is not None and not TRAITS[family].is_binary):
            unknown = "version" if mine is None or mine.version is None else "prefix"
            gaps.append(f"the {unknown} of MPI library {name} is unknown")
        version = f"@{mine.version}" if mine is not None and mine.version is not None else ""
        packages["mpi"] = {"require": [package + version]}
        if family == "mvapich2-gdr" and _launchers(site, mine) == ["jsrun"]:
            entry["require"] = ["process_managers=jsrun", "pmi_version=pmi4pmix"]
        if TRAITS[family].of_site_only:
            entry["buildable"] = False
    if entry:
        packages[package] = entry
    return family, mine.version if mine and usable else None, usable


def _is_placed(site: Site, library: Mpi) -> bool:
    """Does the site's file say where the library lies: its prefix, or a module that is no compiler's or external's?"""
    of_compilers = {module for compiler in site.compilers.values() for module in compiler.modules}
    of_externals = {module for external in site.externals.values() for module in external.modules}
    return bool(library.prefix or set(library.modules) - of_compilers - of_externals)


def _launchers(site: Site, library: Mpi | None) -> list[str]:
    return list(library.launchers if library and library.launchers else site.launchers)
