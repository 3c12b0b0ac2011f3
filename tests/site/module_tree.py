"""A module tree as a site has one: what Lmod loads puts prefixes on PATH whose programs say what the site's would.

The MPI library is MPICH from its wheel, with an ``mpiname`` as MVAPICH2's: MPICH and MVAPICH2 share one ABI.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Hidl

LMOD = Path("/usr/share/lmod/lmod/init/bash")
_MPICH = ("mpicc", "mpicxx", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "mpichversion")


@dataclass(frozen=True)
class ModuleTree:
    """Modulefiles in ``<place>/modulefiles``, and the prefixes that they put on PATH in ``<place>/apps``."""

    place: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a process is started with to see this tree, and no module loaded."""
        return {"MODULEPATH": str(self.place / "modulefiles"), "LOADEDMODULES": ""}

    def prefix(self, module: str) -> Path:
        """The prefix of a module."""
        return self.place / "apps" / module

    def add(self, module: str, **programs: str) -> Path:
        """A module, and programs that print a text each; in their names ``_`` stands for a hyphen. Its prefix."""
        prefix = self.prefix(module)
        (prefix / "bin").mkdir(parents=True, exist_ok=True)
        for name, text in programs.items():
            self.program(module, name, f"cat <<'END'\n{text}\nEND")
        file = self.place / "modulefiles" / f"{module}.lua"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'prepend_path("PATH", "{prefix}/bin")\nprepend_path("LD_LIBRARY_PATH", "{prefix}/lib")\n')
        return prefix

    def program(self, module: str, name: str, script: str) -> None:
        """A shell script in the prefix of a module."""
        program = self.prefix(module) / "bin" / name
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)

    def add_mvapich2(self, version: str, mpich: Path, name: str = "mvapich2") -> Path:
        """A module whose prefix holds MPICH's files from ``mpich``, and an ``mpiname`` that says this version."""
        told = f"{name.upper()} {version} Wed March 02 22:00:00 EST 2022 ch3:mrail"
        prefix = self.add(f"{name}/{version}", mpiname=told)
        for program in _MPICH:
            shutil.copy2(mpich / "bin" / program, prefix / "bin" / program)
        (prefix / "lib").mkdir()
        for library in mpich.glob("lib/libmpi*"):
            shutil.copy2(library, prefix / "lib" / library.name)
        (prefix / "include").mkdir()
        for header in mpich.glob("include/mpi*.h"):
            shutil.copy2(header, prefix / "include" / header.name)
        return prefix

    def add_gcc(self, version: str) -> Path:
        """A module with this machine's GCC, which says that it is of another version; its Fortran is the C compiler."""
        prefix = self.add(f"gcc/{version}")
        for name, real in {"gcc": "gcc", "g++": "g++", "gfortran": "gcc"}.items():
            script = f'case $1 in -dumpfullversion) echo {version};; *) exec /usr/bin/{real} "$@";; esac'
            self.program(f"gcc/{version}", name, script)
        return prefix


def frontera(place: Path, mpich: Path) -> ModuleTree:
    """Every module that Frontera's file names, with what its programs say there."""
    tree = ModuleTree(place)
    tree.add_gcc("9.1.0")
    tree.add_mvapich2("2.3.7", mpich)
    tree.add("intel/23.1.0", icx="Intel(R) oneAPI DPC++/C++ Compiler 2023.1.0 (2023.1.0.20230320)")
    told = "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)"
    tree.add("impi/21.9.0", impi_info="", mpiexec=told, mpicc="gcc")
    tree.add("cmake/3.24.2", cmake="cmake version 3.24.2")
    return tree


def frontera_rtx(place: Path, mpich: Path) -> ModuleTree:
    """The modules of MVAPICH2-GDR on Frontera's GPU nodes; those of its other libraries are not there."""
    tree = ModuleTree(place)
    tree.add_gcc("8.3.0")
    for module in ("cuda/10.0", "cudnn/7.6.2", "cmake/3.24.2"):
        tree.add(module)
    tree.add_mvapich2("2.3.7", mpich, "mvapich2-gdr")
    return tree


def at(hidl: Hidl, tree: ModuleTree, site: str = "frontera", text: str = "") -> Hidl:
    """hidl on a machine with this tree, which ``site`` matches by its name; ``text``: more of the user's file."""
    here = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.strip()
    file = hidl.config / "sites" / f"{site}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    head = f"name: {site}\nextends: {site}\nlogin_host: {here}\nmatch:\n  hostname: {here}\n"
    file.write_text(f"{head}install:\n  verify: here\n{text}", encoding="utf-8")
    return Hidl(hidl.environment | tree.environment)


needs_lmod = pytest.mark.skipif(not LMOD.is_file(), reason="NOT TESTED: asking modules; Lmod is not here (lmod)")
