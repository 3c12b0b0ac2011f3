"""Environments of shipped sites in a real Spack 1.x, with invented places for what their files leave open."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hidl_cli.inputs.load import load
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import Compiler, External, Mpi, Site
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.providers.spack.environment import environment
from hidl_cli.stack.providers.spack.host import Places
from tests.spack.conftest import BUILTIN, HIDL_REPOSITORY, ROOT, Spack

pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        ROOT is None or BUILTIN is None,
        reason="NOT TESTED: sites' environments in a real Spack; make spack-tests",
    ),
]

#: Versions of MPI libraries that Spack has, for files that leave them open.
VERSIONS = {"cray-mpich": "8.1.28", "mvapich2": "2.3.7", "openmpi": "5.0.5", "mpich": "4.2.0", "mvapich2-gdr": "2.3.7"}


def completed(site: Site) -> Site:
    """The site with this machine's compilers at the place of its own, and with an MPI library that is installed."""
    gcc = Compiler(
        package="gcc", version="12.2.0", prefix="/usr", c="/usr/bin/gcc", cxx="/usr/bin/g++", fortran="gfortran"
    )
    library = site.mpi[site.default_mpi or ""]
    version = library.version or VERSIONS[library.family]
    mine = Mpi.model_validate(library.model_dump() | {"version": version, "prefix": "/invented/mpi", "modules": []})
    python = External(version="3.11.9", prefix="/invented/python", variants="+bz2+ctypes+lzma+pyexpat+sqlite3+ssl+zlib")
    return site.model_copy(
        update={
            "compilers": {"gcc": gcc},
            "default_compiler": "gcc",
            "mpi": {**site.mpi, site.default_mpi: mine},
            "externals": {"python": python},
        }
    )


def concretized(spack: Spack, tmp_path: Path, name: str) -> dict[str, Any]:
    """The packages of the site's stack ``mpi``, by name, as Spack's lockfile has them."""
    where = Places(
        root=tmp_path,
        builtin=Path(BUILTIN or "", "repos", "spack_repo", "builtin"),
        own=HIDL_REPOSITORY,
        stage=tmp_path / "stage",
        misc=spack.place / "misc",
    )
    made = environment(completed(load(RULES, name)), load_stack("mpi"), where, view=tmp_path / "view", release=(1, 2))
    place = tmp_path / "environment"
    place.mkdir()
    document = yaml.safe_load(made.text)
    document["spack"]["config"].pop("misc_cache")  # that of the fixture, which the tests share
    (place / "spack.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    done: subprocess.CompletedProcess[str] = spack("-e", str(place), "concretize")
    assert done.returncode == 0, done.stdout + done.stderr
    specs = json.loads((place / "spack.lock").read_text(encoding="utf-8"))["concrete_specs"].values()
    return {spec["name"]: spec for spec in specs}


@pytest.mark.parametrize(
    ("name", "package", "variants", "target"),
    [
        ("frontier", "cray-mpich", {"rocm": True, "cuda": False, "amdgpu_target": ["gfx90a"]}, "zen3"),
        ("perlmutter", "cray-mpich", {"cuda": True, "rocm": False, "cuda_arch": ["80"]}, "zen3"),
        ("lumi", "cray-mpich", {"rocm": True, "amdgpu_target": ["gfx90a"]}, "zen3"),
        ("piz-daint", "cray-mpich", {"cuda": True, "cuda_arch": ["60"]}, "haswell"),
        ("frontera", "mvapich2", {}, "cascadelake"),
        ("expanse", "openmpi", {}, "x86_64_v3"),
    ],
)
def test_a_sites_lockfile_has_the_variants_of_its_gpus_and_its_processors(
    spack: Spack, tmp_path: Path, *, name: str, package: str, variants: dict[str, Any], target: str
) -> None:
    if shutil.which("gfortran") is None:
        pytest.skip("NOT TESTED: gfortran is missing")
    packages = concretized(spack, tmp_path, name)
    library = packages[package]
    assert library["external"]["path"] == "/invented/mpi"
    assert {key: library["parameters"][key] for key in variants} == variants
    built = packages["py-mpi4py"]["arch"]["target"]
    assert (built if isinstance(built, str) else built["name"]) == target
