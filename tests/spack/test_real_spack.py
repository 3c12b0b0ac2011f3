"""The repository in a real Spack 1.x, where ``HIDL_TEST_SPACK`` and ``HIDL_TEST_SPACK_PACKAGES`` name one."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.spack import concrete, rpms
from tests.spack.conftest import BUILTIN, PACKAGES, ROOT, Spack

pytestmark = pytest.mark.skipif(
    ROOT is None or BUILTIN is None,
    reason="NOT TESTED: Spack packages in a real Spack; make spack-tests",
)

NAMES = [file.parent.name.replace("_", "-") for file in PACKAGES]
PREFIX = "/opt/mvapich2/gdr/2.3.7/no-mpittool/no-openacc/cuda11.6/mofed5.5/mpirun/gnu8.5.0"
PROGRAMS = ["mpicc", "mpicxx", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy"]


@pytest.fixture(scope="module")
def site(spack: Spack) -> Spack:
    """Spack on a machine with gcc, a CUDA and what a site has besides, all of it external; CUDA is an empty folder."""
    (spack.place / "cuda/bin").mkdir(parents=True)
    empty = {"cuda": ["12.4.0", "11.6.2", "10.1.243"], "slurm": ["22-05-6-1"], "pmix": ["4.1.2"], "openpbs": ["20.0.1"]}
    externals = {
        name: {"externals": [{"spec": f"{name}@{version}", "prefix": f"{spack.place}/cuda"} for version in versions]}
        for name, versions in empty.items()
    }
    compilers = {"c": shutil.which("gcc"), "cxx": shutil.which("g++"), "fortran": "/usr/bin/gfortran"}
    gcc = {
        "spec": "gcc@12.2.0 languages='c,c++,fortran'",
        "prefix": "/usr",
        "extra_attributes": {"compilers": compilers},
    }
    packages = {"all": {"require": [f"target={platform.machine()}"]}, "gcc": {"externals": [gcc], "buildable": False}}
    for name, entry in externals.items():
        packages[name] = {**entry, "buildable": False}
    spack.configure("packages", json.dumps({"packages": packages}))
    return spack


def test_every_package_is_listed(spack: Spack) -> None:
    assert set(NAMES) <= set(spack("list", "--format", "name_only", "-r", "hidl").stdout.split())


@pytest.mark.parametrize("name", NAMES)
def test_a_package_loads_and_reports_of_itself(spack: Spack, name: str) -> None:
    told = spack("info", name)
    assert told.returncode == 0, told.stderr
    assert "Licenses:" in told.stdout


def test_the_audit_finds_nothing(spack: Spack) -> None:
    audit = spack("audit", "packages", *NAMES)
    assert audit.returncode == 0, audit.stdout + audit.stderr


@pytest.mark.parametrize(
    "spec",
    [
        "mvapich2-gdr@2.3.7 ^cuda@10",  # frontera-rtx: gcc 8.3, CUDA 10, mpirun_rsh or ibrun
        "mvapich2-gdr@2.3.7 ~mcast distribution=mofed5.5 ^cuda@11.6",  # pitzer
        "mvapich2-gdr@2.3.7 process_managers=jsrun pmi_version=pmi4pmix",  # summit, sierra, lassen
        "mvapich2-gdr@2.3.7 process_managers=jsrun pmi_version=pmix",
        "mvapich2-gdr@2.3.6 process_managers=slurm pmi_version=pmi2",
        "mvapich2-gdr@2.3.5 process_managers=pbs",
    ],
)
def test_mvapich2_gdr_concretizes_as_sites_need_it(site: Spack, spec: str) -> None:
    concrete = site("spec", "--fresh", spec)
    assert concrete.returncode == 0, concrete.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_package_for_gpus_passes_their_architecture_on(site: Spack, name: str) -> None:
    """Only packages with the variant: the others take the GPUs' variants from ``packages:all``."""
    if "cuda_arch" not in site("info", "--no-dependencies", name).stdout:
        pytest.skip("the package has no variant cuda_arch")
    gpu = "gpu_operations=nccl frameworks=pytorch" if name == "py-horovod" else ""
    concrete = site("spec", "--fresh", "--json", f"{name} +cuda cuda_arch=80 {gpu} ^cuda@12")
    assert concrete.returncode == 0, concrete.stderr
    nodes = {node["name"]: node["parameters"] for node in json.loads(concrete.stdout)["spec"]["nodes"]}
    compiled = {name: node["cuda_arch"] for name, node in nodes.items() if node.get("cuda") and "cuda_arch" in node}
    assert {name, *(("py-torch",) if gpu else ())} <= set(compiled)
    assert set(map(tuple, compiled.values())) == {("80",)}
    assert not gpu or nodes["nccl"]["cuda_arch"] == ["80"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("mvapich2-gdr+cuda+rocm", "not for both"),
        ("mvapich2-gdr process_managers=slurm pmi_version=simple", "Slurm's process manager takes pmi1, pmi2 or pmix"),
        ("mvapich2-gdr process_managers=jsrun pmi_version=pmi2", "jsrun takes pmix or pmi4pmix"),
    ],
)
def test_what_was_never_made_is_refused_with_the_reason(site: Spack, spec: str, reason: str) -> None:
    assert reason in site("spec", "--fresh", spec).stderr


@pytest.fixture(scope="module")
def installed(spack: Spack, stack_prefix: Callable[[str], Path]) -> Path:
    """The prefix of mvapich2-gdr, installed by Spack from an RPM laid out as OSU's; its programs are MPICH's."""
    mirror = spack.place / "mirror"
    mirror.mkdir()
    sha256 = rpms.write(mirror / "new.rpm", _members(stack_prefix("mpi")), compressor="gzip")
    kept = mirror / "_source-cache" / "archive" / sha256[:2] / sha256
    kept.parent.mkdir(parents=True)
    (mirror / "new.rpm").rename(kept)
    spack.configure("mirrors", json.dumps({"mirrors": {"binaries": f"file://{mirror}"}}))
    done = _install(spack, sha256)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(spack("location", "-i", "mvapich2-gdr").stdout.strip())


def _install(spack: Spack, sha256: str) -> subprocess.CompletedProcess[str]:
    """``spack install`` of that RPM, from a spec that is concrete: nothing is solved."""
    compilers = {"compilers": {"c": shutil.which("gcc"), "cxx": shutil.which("g++")}}
    languages = {"languages": ["c", "c++"]}
    gcc = concrete.Node(
        "gcc", "12.2.0", languages, prefix="/usr", virtuals=("c", "cxx"), types=("build",), extra=compilers
    )
    cuda = concrete.Node("cuda", "11.6.2", prefix=str(spack.place))
    chosen = {"rpm": sha256, "distribution": "mofed5.5", "pmi_version": "pmi1", "process_managers": "mpirun"}
    switches = {"cuda": True, "rocm": False, "mcast": False, "openacc": False, "core_direct": False}
    root = concrete.Node("mvapich2-gdr", "2.3.7", chosen | switches, namespace="hidl", needs=(gcc, cuda))
    file = spack.place / f"{sha256}.json"
    concrete.write(file, spack("arch", "--operating-system").stdout.strip(), root)
    return spack("install", str(file))


def _members(mpich: Path) -> list[rpms.Member]:
    """MPICH, with the vendor's fixed prefix in its wrappers and its libraries in lib64."""
    found = rpms.below(mpich, PREFIX, [*(f"bin/{name}" for name in PROGRAMS), "include/mpi.h", "include/mpi_proto.h"])
    found += rpms.below(mpich, PREFIX, ["lib/libmpi.so", "lib/libmpi.so.12", "lib/mpich"])
    return [
        replace(
            member,
            name=member.name.replace(f"{PREFIX}/lib/", f"{PREFIX}/lib64/"),
            content=_fixed(member.content) if b"BASH_SOURCE" in member.content else member.content,
        )
        for member in found
    ]


def _fixed(wrapper: bytes) -> bytes:
    lines = wrapper.split(b"\n")
    fixed = {b"prefix=": PREFIX, b"libdir=": f"{PREFIX}/lib64", b"includedir=": f"{PREFIX}/include"}
    return b"\n".join(
        next((key + path.encode() for key, path in fixed.items() if line.startswith(key)), line) for line in lines
    )


def test_an_rpm_is_installed_with_its_paths_rewritten(installed: Path) -> None:
    wrapper = (installed / "bin/mpicc").read_text(encoding="utf-8")
    assert PREFIX not in wrapper
    assert f"prefix={installed}\n" in wrapper


def test_the_wrapper_calls_the_compiler_of_the_spec(installed: Path) -> None:
    assert f'CC="{shutil.which("gcc")}"' in (installed / "bin/mpicc").read_text(encoding="utf-8")


def test_its_two_ranks_compute_a_sum(spack: Spack, installed: Path) -> None:
    """Spack's own tests of the virtual package mpi run as well; they want Fortran, which MPICH's wheel has not."""
    assert installed.is_dir()
    spack("test", "run", "mvapich2-gdr")
    assert "Mvapich2Gdr::test_two_ranks .. PASSED" in spack("test", "results", "-l").stdout


def test_another_rpm_is_not_installed(spack: Spack, installed: Path) -> None:
    """One that is in no mirror, and cannot be downloaded: the error says what, where and its checksum."""
    assert installed.is_dir()
    refused = _install(spack, "0" * 64)
    assert "Put it into a mirror of yours" in refused.stdout + refused.stderr
    assert refused.returncode != 0
