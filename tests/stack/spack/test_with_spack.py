"""What only a real Spack shows of stores, upstreams, modulefiles and registries; the packages build in seconds."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Hidl
from tests.stack.conftest import recipe, site
from tests.waiting import until

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3600)]

PACKAGE = """\
from spack_repo.builtin.build_systems.generic import Package
from spack.package import *

class MpiHello(Package):
    has_code = False
    version("1.0")
    version("2.0")
    depends_on("mpi")

    def install(self, spec, prefix):
        mkdirp(prefix.bin)
        with open(join_path(prefix.bin, "mpi-hello"), "w") as file:
            file.write(f"#!/bin/sh\\necho hello from {spec.version} in {prefix}\\n")
        set_executable(join_path(prefix.bin, "mpi-hello"))
"""
LMOD = Path("/usr/share/lmod/lmod/init/bash")


@pytest.fixture
def hidl(hidl: Hidl, stack_prefix: Callable[[str], Path], tmp_path: Path) -> Hidl:
    """hidl with an MPICH on PATH, and the stack ``hello``: a package of the user's own that uses MPI."""
    mpich = stack_prefix("mpi")
    repository = tmp_path / "spack_repo" / "mine"
    (repository / "packages" / "mpi_hello").mkdir(parents=True)
    (repository / "repo.yaml").write_text("repo: {namespace: mine, api: v2.0}\n")
    (repository / "packages" / "mpi_hello" / "package.py").write_text(PACKAGE)
    spack = {"specs": ["mpich", "mpi-hello"], "wheels": ["py-mpi4py"]}
    recipe(hidl, "hello", packages={"mpich": "", "mpi4py": ""}, spack=spack)
    path = {"PATH": os.pathsep.join((str(mpich / "bin"), hidl.environment["PATH"]))}
    return Hidl(hidl.environment | path | {"LD_LIBRARY_PATH": str(mpich / "lib")})


@pytest.fixture
def install(real: Hidl, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``install("place", *options, modules="lmod")``: the manifest of the stack below that place, so configured."""

    def install(place: str, *options: str, **spack: Any) -> dict[str, Any]:
        config = spack.pop("config", {}) | {"repos": {"mine": str(tmp_path / "spack_repo" / "mine")}}
        site(real, "local", f"title: here\nextends: local\nspack: {json.dumps(spack | {'config': config})}\n")
        words = ("install", "hello", "--provider", "spack", "--prefix", str(tmp_path / place), *options, "--json")
        done = real(*words, timeout=1800)
        assert done.returncode == 0, done.stderr
        (manifest,) = json.loads(done.stdout)["installations"]
        assert all(check["ok"] for check in manifest["verification"]["checks"])
        return dict(manifest)

    return install


def said(manifest: dict[str, Any]) -> str:
    """What the package prints: its version and prefix."""
    return subprocess.run([f"{manifest['prefix']}/bin/mpi-hello"], capture_output=True, text=True, check=True).stdout


def test_packages_of_a_padded_upstream_are_reused_and_its_path_is_padded(
    install: Callable[..., dict[str, Any]], real: Hidl, tmp_path: Path
) -> None:
    old = install("centre", "--spec", "mpi-hello@1", padded_length=200)
    assert "hello from 1.0" in said(old)
    assert "__spack_path_placeholder__" in said(old)
    upstream = {"centre": str(tmp_path / "centre" / "spack" / "store")}
    assert "hello from 2.0" in said(install("newest", upstreams=upstream))
    reused = install("reused", upstreams=upstream, reuse=True)
    assert said(reused) == said(old)
    assert not list((tmp_path / "reused" / "spack" / "store").glob("*/mpi-hello-*"))
    own = tmp_path / "own"
    plain = real("stack", "env", "hello", "--prefix", str(tmp_path / "centre"), "--for-spack", str(own))
    found = subprocess.run(
        ["bash", "-c", f"{plain.stdout}\nspack install && spack find --format '{{name}} {{prefix}}' mpi-hello"],
        env=real.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines()[-1] == f"mpi-hello {said(old).split()[-1]}", found.stdout + found.stderr


def test_a_package_under_development_is_built_from_its_directory_beside_the_installation(
    install: Callable[..., dict[str, Any]], real: Hidl, tmp_path: Path
) -> None:
    before = install("centre")
    (tmp_path / "source").mkdir()
    plain = real("stack", "env", "hello", "--prefix", str(tmp_path / "centre"), "--for-spack", str(tmp_path / "own"))
    develop = f"spack develop --no-clone --path {tmp_path}/source mpi-hello@2.0"
    script = (
        f"set -e\n{plain.stdout}\n{develop}\nspack concretize --force\nspack install\nmpi-hello\nspack containerize"
    )
    done = subprocess.run(
        ["bash", "-c", script], env=real.environment, cwd=tmp_path / "own", capture_output=True, text=True, check=False
    )
    assert f"hello from 2.0 in {tmp_path}/own/store" in done.stdout, done.stdout + done.stderr
    assert "FROM spack/" in done.stdout, done.stderr
    assert said(before).split()[-1].startswith(str(tmp_path / "centre"))


def test_lmod_loads_what_spack_wrote_in_a_hierarchy_and_tcl_has_names_of_the_sites_own(
    install: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    if not LMOD.is_file():
        pytest.skip("NOT TESTED: modulefiles in Lmod; install lmod")
    lmod = {"hierarchy": ["mpi"], "projections": {"all": "{name}/{version}"}}
    install("root", modules="lmod", config={"modules": {"default": {"lmod": lmod}}})
    (core,) = (tmp_path / "root" / "spack" / "modules").glob("*/Core")

    def run(*commands: str) -> str:
        lines = (f"source {LMOD}", f"module use {core}", *commands)
        return subprocess.run(
            ["bash", "-c", " && ".join(lines)],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin"},
        ).stdout

    assert "hello from 2.0" not in run("module load mpi-hello", "mpi-hello")  # not before its MPI library
    assert "hello from 2.0" in run("module load mpich", "module load mpi-hello", "mpi-hello")
    tcl = {"all": {"autoload": "none"}, "projections": {"all": "{name}/of-the-centre-{version}"}}
    install("root", "--spec", "mpi-hello", modules="tcl", config={"modules": {"default": {"tcl": tcl}}})
    assert list((tmp_path / "root" / "spack" / "modules").glob("*/mpi-hello/of-the-centre-2.0"))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """An OCI registry on this machine, for the user ``builder`` with the password ``secret``."""
    program = shutil.which("docker-registry") or os.environ.get("HIDL_TEST_REGISTRY")
    if not program:
        pytest.skip("NOT TESTED: build caches in an OCI registry; install docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "users").write_text("builder:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n")
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
        "auth": {"htpasswd": {"realm": "cache", "path": str(tmp_path / "users")}},
    }
    (tmp_path / "registry.yaml").write_text(yaml.safe_dump(settings))
    with (tmp_path / "registry.log").open("w") as log:
        server = subprocess.Popen([program, "serve", str(tmp_path / "registry.yaml")], stdout=log, stderr=log)
    try:
        until(lambda: "listening on" in (tmp_path / "registry.log").read_text(), within=30)
        yield f"oci+http://{address}/hidl/cache"
    finally:
        server.terminate()
        server.wait()


def test_a_registry_serves_another_place_with_the_users_password(
    install: Callable[..., dict[str, Any]], real: Hidl, registry: str, tmp_path: Path
) -> None:
    cache = {"url": registry, "user": "builder", "password_variable": "REGISTRY_PASSWORD"}
    real.environment["REGISTRY_PASSWORD"] = "secret"
    install("first", build_caches={"centre": cache})
    push = ("stack", "push", "hello", "centre", "--prefix", str(tmp_path / "first"))
    refused = real(*push, REGISTRY_PASSWORD="wrong")
    assert (refused.returncode, "secret" in refused.stderr) == (5, False), refused.stderr
    signed = real(*push, "--key", "Centre")
    assert (signed.returncode, "does not sign packages in OCI registries" in signed.stderr) == (2, True), signed.stderr
    pushed = real(*push, timeout=600)
    assert pushed.returncode == 0, pushed.stderr
    second = install("another/longer/place", "--cache-only", build_caches={"centre": cache})
    assert f"hello from 2.0 in {tmp_path}/another" in said(second)
