"""Module tree of a twin, for Lmod: the modules that the site's file names, and no other."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hidl_cli.documents import write_text
from hidl_cli.mpi import family_of_module
from hidl_cli.site.probes.software import VERSION_COMMANDS
from hidl_cli.site.schema import Site
from hidl_cli.templates import render_lua
from hidl_twin import TEMPLATES
from hidl_twin.layout import Layout
from hidl_twin.twin import programs
from hidl_twin.twin.libraries import Provided

_COMPILERS = {"c": "gcc", "cxx": "g++", "fortran": "gfortran"}


def write(site: Site, layout: Layout, libraries: Sequence[Provided]) -> Path:
    """Write the tree; return its directory, for MODULEPATH."""
    tree = layout["site"] / "modulefiles"
    if tree.exists():
        shutil.rmtree(tree)
    tree.mkdir(parents=True)
    mpi = {name: library for library in libraries for name in [_of_library(site, library)] if name}
    named = tuple(dict.fromkeys(_named(site)))
    prefixes = dict(_compilers(site, layout))
    compilers = set(prefixes)
    prefixes |= dict(_externals(site, layout, named))
    for name in named:
        versions = [other for other in named if other.startswith(f"{name}/")]
        if not versions:
            library = mpi.get(name)
            file = name if "/" in name or library is None else f"{name}/{library.version}"
            values = {
                "name": name,
                "prefix": str(_place(library)) if library else str(prefixes.get(name, "")),
                "family": "MPI" if library else "compiler" if name in compilers else "",
            }
            write_text(tree / f"{file}.lua", render_lua("modulefile.lua.j2", values, TEMPLATES))
    return tree


def _place(library: Provided) -> str | Path:
    return library.place or library.prefix


def _named(site: Site) -> Iterator[str]:
    """Modules named in the site's file."""
    yield from site.policies.modules
    for mpi in site.mpi.values():
        yield from mpi.modules
    for compiler in site.compilers.values():
        yield from compiler.modules
    for external in site.externals.values():
        yield from external.modules


def _of_library(site: Site, library: Provided) -> str | None:
    """The module that provides a library: by its name, else the last; None if there is none."""
    modules = site.mpi[library.name].modules
    telling = [module for module in modules if family_of_module(module) == library.family]
    return next(reversed(telling or modules), None)


def _compilers(site: Site, layout: Layout) -> Iterator[tuple[str, Path]]:
    """Modules that provide compilers, each with a prefix of this machine's GCC that reports the site's version."""
    for name, compiler in site.compilers.items():
        if not compiler.modules or compiler.package != "gcc":
            continue
        prefix = layout["site"] / "compilers" / name
        for program in _COMPILERS.values():
            if true := shutil.which(program):
                version = compiler.version
                if version:
                    programs.write_compiler_wrapper(prefix / "bin" / program, version, Path(true))
        yield compiler.modules[-1], prefix


def _externals(site: Site, layout: Layout, modules: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Modules that provide a program of this machine, such as cmake, each with its prefix.

    The program reports the version of the site's file, else that in the module's name. Python is left out: virtual
    environments use this machine's own.
    """
    for module in modules:
        name, _, version = module.partition("/")
        program, *asked = VERSION_COMMANDS.get(name, ("",))
        true = shutil.which(Path(program).name) if asked == ["--version"] and name != "python" else None
        if true is None:
            continue
        external = site.externals.get(name)
        version = (external.version if external else None) or version
        prefix = layout["site"] / "externals" / module
        (prefix / program).parent.mkdir(parents=True, exist_ok=True)
        (prefix / program).unlink(missing_ok=True)
        if version:
            programs.write_version_wrapper(prefix / program, f"{Path(program).name} version {version}", Path(true))
        else:
            (prefix / program).symlink_to(true)
        yield module, prefix
