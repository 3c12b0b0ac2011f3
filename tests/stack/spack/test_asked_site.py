"""A site whose modules are asked: what its machine answers reaches Spack, which concretizes against it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hidl_twin import packages as needed

from tests.cluster.cluster import LivingCluster, living
from tests.conftest import Hidl
from tests.site.module_tree import ModuleTree, at, frontera, needs_lmod

pytestmark = needs_lmod

INSTALL = ("install", "mpi", "--site", "frontera", "--provider", "spack")


@pytest.fixture
def modules(tmp_path: Path, stack_prefix: Callable[[str], Path]) -> ModuleTree:
    """The modules that Frontera's file names."""
    return frontera(tmp_path / "tree", stack_prefix("mpi"))


@pytest.fixture
def there(hidl: Hidl, modules: ModuleTree) -> Hidl:
    """hidl on a machine that is Frontera by the user's own file."""
    return at(hidl, modules)


def test_the_environment_holds_what_the_machine_answered(there: Hidl, modules: ModuleTree, spack: Path) -> None:
    shown = there.json(*INSTALL, "--dry-run", "--spack", str(spack))
    packages = yaml.safe_load(shown["plans"][0]["environment"])["spack"]["packages"]
    gcc = modules.prefix("gcc/9.1.0")
    assert packages["mvapich2"] == {
        "externals": [
            {"spec": "mvapich2@2.3.7", "prefix": str(modules.prefix("mvapich2/2.3.7")), "modules": ["mvapich2"]}
        ],
        "buildable": False,
    }
    (compiler,) = packages["gcc"]["externals"]
    assert compiler["extra_attributes"]["compilers"] == {
        "c": f"{gcc}/bin/gcc",
        "cxx": f"{gcc}/bin/g++",
        "fortran": f"{gcc}/bin/gfortran",
    }
    assert packages["cmake"]["externals"][0]["prefix"] == str(modules.prefix("cmake/3.24.2"))


def test_a_site_without_compilers_gets_the_one_of_its_mpi_library(
    hidl: Hidl, tmp_path: Path, stack_prefix: Callable[[str], Path], spack: Path
) -> None:
    tree = ModuleTree(tmp_path / "tree")
    prefix = tree.add_mvapich2("2.3.7", stack_prefix("mpi"))
    tree.program("mvapich2/2.3.7", "mpicc", f"echo icx -I{prefix}/include -lmpi")
    intel = tree.add("mvapich2/2.3.7", icx="Compiler 2023.1.0", icpx="Compiler 2023.1.0")
    lonestar6 = at(hidl, tree, "lonestar6")
    shown = lonestar6.json(
        "install", "mpi", "--site", "lonestar6", "--provider", "spack", "--dry-run", "--spack", str(spack)
    )
    packages = yaml.safe_load(shown["plans"][0]["environment"])["spack"]["packages"]
    (compiler,) = packages["intel-oneapi-compilers"]["externals"]
    assert (compiler["spec"], compiler["prefix"]) == ("intel-oneapi-compilers@2023.1.0", str(intel))
    assert packages["c"]["require"] == ["intel-oneapi-compilers"]
    assert packages["mvapich2"]["externals"][0]["spec"] == "mvapich2@2.3.7"


@pytest.mark.timeout(1200)
def test_a_real_spack_concretizes_against_the_mpi_library_of_a_module(real: Hidl, modules: ModuleTree) -> None:
    """``real`` is started without a module command, and finds what only a module places."""
    zlib = modules.add("zlib-ng/2.3.3")
    text = "externals:\n  zlib-ng: {version: 2.3.3, modules: [zlib-ng/2.3.3], variants: +compat}\n"
    done = at(real, modules, text=text)(*INSTALL, "--dry-run", "--json", timeout=1000)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plans"][0]["plan"]
    assert plan["mpi"] == {"family": "mvapich2", "version": "2.3.7"}
    assert plan["packages"].keys() >= {"py-mpi4py", "py-numpy", "mvapich2"}
    assert (
        plan["spack"]["externals"].items()
        >= {
            "mvapich2": str(modules.prefix("mvapich2/2.3.7")),
            "gcc": str(modules.prefix("gcc/9.1.0")),
            "zlib-ng": str(zlib),
        }.items()
    )


@pytest.fixture(scope="module")
def twin(common_directory: Path) -> Iterator[LivingCluster]:
    """The twin of Frontera; its login host sees Spack too."""
    if (obstacle := needed.obstacle(accounting=False, twin=True)) is not None:
        pytest.skip(f"THE TWIN OF FRONTERA NEEDS A CLUSTER: {obstacle.message}")
    named = [os.environ.get(name) for name in ("HIDL_TEST_SPACK", "HIDL_TEST_SPACK_PACKAGES")]
    shares = [common_directory, *(Path(place) for place in named if place)]
    with living(common_directory / "twins" / "frontera", *shares, nodes=1, accounting=False, like="frontera") as found:
        yield found


def on(twin: LivingCluster, hidl: Hidl, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run hidl on the twin's login host."""
    login = ["cluster", "login", "--like", "frontera", "--directory", str(twin.directory), "--"]
    return twin(*hidl.command(*login), *hidl.command(*arguments), timeout=timeout, **hidl.environment)


def test_a_twin_answers_as_its_site_does(twin: LivingCluster, hidl: Hidl) -> None:
    shown = on(twin, hidl, "install", "mpi", "--site", "frontera", "--dry-run", "--json")
    assert shown.returncode == 0, shown.stderr
    asked = {one["path"]: (one["value"], one["host"]) for one in json.loads(shown.stdout)["asked"]}
    version, host = asked["mpi.mvapich2.version"]
    assert (version, host.endswith(".frontera.tacc.utexas.edu")) == ("2.3.7", True)
    assert asked.keys() == {"mpi.mvapich2.version", "mpi.mvapich2.prefix", "mpi.impi.prefix"}


@pytest.mark.timeout(1200)
def test_a_real_spack_concretizes_on_a_twin(twin: LivingCluster, real: Hidl) -> None:
    done = on(twin, real, *INSTALL, "--dry-run", "--json", timeout=1000)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (place,) = (one["value"] for one in document["asked"] if one["path"] == "mpi.mvapich2.prefix")
    plan = document["plans"][0]["plan"]
    assert plan["mpi"] == {"family": "mvapich2", "version": "2.3.7"}
    assert plan["spack"]["externals"]["mvapich2"] == place
