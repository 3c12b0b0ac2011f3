"""Build caches: what must be built beside them, installing from them alone, and pushing to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.stack.lock import Lock
from hidl_cli.stack.providers.spack.caches import to_build
from hidl_cli.stack.providers.spack.environment import cache_of, environment
from hidl_cli.stack.providers.spack.host import Places
from hidl_cli.stack.providers.spack.lock import SpackLock
from tests.conftest import Hidl
from tests.stack.spack.conftest import site, stack

INSTALL = ("install", "mpi", "--provider", "spack")


def lock(dependencies: dict[str, dict[str, list[str]]], *, external: str = "mpich") -> SpackLock:
    """A lockfile whose root is the first package; the dependencies of each have the given types."""
    names = dict.fromkeys([*dependencies, *(name for needed in dependencies.values() for name in needed)])
    specs = {
        name: {
            "name": name,
            "version": "1",
            "dependencies": [
                {"name": needed, "hash": needed, "parameters": {"deptypes": types}}
                for needed, types in dependencies.get(name, {}).items()
            ],
            **({"external": {"path": "/usr"}} if name == external else {}),
        }
        for name in names
    }
    content = {"roots": [{"hash": next(iter(names)), "spec": ""}], "concrete_specs": specs}
    return SpackLock(
        "mpi", "here", "1.2.0", "0", {}, content, Lock("mpi", "cp311", "linux-x86_64", None, "cpu", (), ())
    )


NEEDS = {
    "py-mpi4py": {"mpich": ["link"], "py-cython": ["build"], "python-venv": ["build", "run"]},
    "py-cython": {"py-setuptools": ["build"]},
    "python-venv": {"gmake": ["build"]},
}


@pytest.mark.parametrize(
    ("there", "built"),
    [
        ((), {"py-mpi4py", "py-cython", "python-venv", "py-setuptools", "gmake"}),
        (("py-mpi4py", "python-venv"), set()),
        (("py-mpi4py",), {"python-venv", "gmake"}),
        (("python-venv", "py-cython"), {"py-mpi4py"}),
        (("py-mpi4py", "py-cython", "py-setuptools"), {"python-venv", "gmake"}),
    ],
)
def test_what_is_in_a_cache_needs_no_build_tools(there: tuple[str, ...], built: set[str]) -> None:
    assert to_build(lock(NEEDS), frozenset(there)) == built


def test_a_cache_is_a_name_of_the_site_a_url_or_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHES", "/shared")
    caches = {"short": "oci://ghcr.io/centre/cache", "long": {"url": "$CACHES/cache", "signed": False}}
    machine = site(spack={"build_caches": caches})
    found = [cache_of(machine, name) for name in ("short", "long", "/other", "https://cache.example/1")]
    assert [(cache.url, cache.signed) for cache in found] == [
        ("oci://ghcr.io/centre/cache", False),  # Spack signs nothing there
        ("file:///shared/cache", False),
        ("file:///other", True),
        ("https://cache.example/1", True),
    ]


def test_a_registry_gets_the_user_and_the_name_of_the_variable_with_the_password(where: Places) -> None:
    cache = {"url": "oci+http://localhost:5000/cache", "user": "builder", "password_variable": "REGISTRY_TOKEN"}
    made = environment(site(spack={"build_caches": {"centre": cache}}), stack(), where, view=where.root, release=(1, 2))
    assert made.document["spack"]["mirrors"]["centre-binaries"] == {
        "url": "oci+http://localhost:5000/cache",
        "source": False,
        "binary": True,
        "signed": False,
        "access_pair": {"id": "builder", "secret_variable": "REGISTRY_TOKEN"},
    }


@pytest.fixture
def hidl(hidl: Hidl, spack: Path, stack_prefix: Callable[[str], Path], tmp_path: Path) -> Hidl:
    """hidl with a program at Spack's place, and an unsigned cache of this machine."""
    mpich = stack_prefix("mpi")
    file = Path(hidl.environment["XDG_CONFIG_HOME"]) / "hidl" / "sites" / "local.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    cache = f"{{url: {tmp_path}/cache, signed: false}}"
    file.write_text(f"name: local\ntitle: here\nextends: local\nspack: {{build_caches: {{centre: {cache}}}}}\n")
    path = os.pathsep.join((str(mpich / "bin"), hidl.environment["PATH"]))
    own = {"PATH": path, "LD_LIBRARY_PATH": str(mpich / "lib")}
    return Hidl(hidl.environment | own | {"HIDL_SPACK": str(spack), "SPACK_PYTHON": sys.executable})


def calls(spack: Path) -> list[str]:
    """The verbs that Spack got."""
    return [line.split()[0] for line in (spack / "calls").read_text().splitlines()]


def test_a_stack_is_pushed_and_installed_from_the_cache_alone(hidl: Hidl, spack: Path, tmp_path: Path) -> None:
    assert hidl(*INSTALL).returncode == 0
    assert calls(spack) == ["concretize", "buildcache", "fetch", "install"]
    pushed = hidl.json("stack", "push", "mpi", "centre")
    assert (pushed["url"], pushed["signed"]) == ((tmp_path / "cache").as_uri(), False)
    (spack / "calls").unlink()
    there = hidl(*INSTALL, "--prefix", str(tmp_path / "there"), "--mirror", str(tmp_path / "cache"), "--cache-only")
    assert there.returncode == 0, there.stderr
    assert calls(spack) == ["buildcache", "install"]  # the lockfile is in the cache's directory, and nothing is fetched


def test_an_empty_cache_names_what_is_missing_before_anything_is_built(hidl: Hidl, spack: Path) -> None:
    failed = hidl(*INSTALL, "--cache-only")
    assert (failed.returncode, "missing: py-mpi4py 4.1.0" in failed.stderr) == (4, True), failed.stderr
    assert calls(spack) == ["concretize", "buildcache"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("stack", "push", "mpi", "centre"), 4, "was not installed by Spack"),
        (("install", "mpi", "--cache-only"), 2, "--cache-only requires the spack provider"),
    ],
)
def test_what_cannot_be_done_is_refused(hidl: Hidl, arguments: tuple[str, ...], status: int, said: str) -> None:
    failed = hidl(*arguments)
    assert (failed.returncode, said in failed.stderr) == (status, True), failed.stderr


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_a_real_cache_serves_a_second_machine_without_a_network(real: Hidl, tmp_path: Path) -> None:
    file = Path(real.environment["XDG_CONFIG_HOME"]) / "hidl" / "sites" / "local.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    cache = f"{{url: {tmp_path}/cache, signed: false}}"
    file.write_text(f"name: local\ntitle: here\nextends: local\nspack: {{build_caches: {{centre: {cache}}}}}\n")
    assert real(*INSTALL, timeout=3000).returncode == 0
    pushed = real("stack", "push", "mpi", "centre", timeout=600)
    assert pushed.returncode == 0, pushed.stderr
    second = ("--prefix", str(tmp_path / "a" / "longer" / "place" / "than" / "before"), "--offline", "--cache-only")
    own = {name: str(tmp_path / "second" / name) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "UV_CACHE_DIR")}
    done = subprocess.run(
        ["unshare", "-n", *real.command(*INSTALL, *second, "--mirror", str(tmp_path / "cache"), "--json")],
        env=real.environment | own,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (manifest,) = json.loads(done.stdout)["installations"]
    assert all(check["ok"] for check in manifest["verification"]["checks"])
    assert "fetch" not in done.stderr


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_a_real_signed_cache_serves_who_trusts_its_key(real: Hidl, tmp_path: Path) -> None:
    def configure(cache: dict[str, object]) -> None:
        file = Path(real.environment["XDG_CONFIG_HOME"]) / "hidl" / "sites" / "local.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        spack = json.dumps({"build_caches": {"centre": cache}})
        file.write_text(f"name: local\ntitle: here\nextends: local\nspack: {spack}\n")

    def spack(*words: str) -> None:
        own = {"SPACK_GNUPGHOME": str(tmp_path / "gpg"), "SPACK_DISABLE_LOCAL_CONFIG": "1"}
        program = f"{real.environment['HIDL_SPACK']}/bin/spack"
        subprocess.run([program, *words], env=real.environment | own, check=True, capture_output=True)

    (tmp_path / "gpg").mkdir(mode=0o700)
    url, key = f"{tmp_path}/cache", str(tmp_path / "centre.pub")
    configure({"url": url})
    spack("gpg", "create", "Centre", "centre@example.org")
    spack("gpg", "export", key)
    assert real(*INSTALL, timeout=3000).returncode == 0
    pushed = real("stack", "push", "mpi", "centre", timeout=600)
    assert (pushed.returncode, "requires signed packages" in pushed.stderr) == (4, True), pushed.stderr
    signed = ("stack", "push", "mpi", "centre", "--key", "Centre")
    pushed = real(*signed, timeout=600, SPACK_GNUPGHOME=str(tmp_path / "gpg"))
    assert pushed.returncode == 0, pushed.stderr
    from_cache = ("--prefix", str(tmp_path / "there"), "--mirror", url, "--cache-only")
    untrusted = real(*INSTALL, *from_cache, timeout=1200)
    assert (untrusted.returncode, "`keys` of the build cache" in untrusted.stderr) == (4, True), untrusted.stderr
    configure({"url": url, "keys": [key]})
    done = real(*INSTALL, *from_cache, timeout=1200)
    assert done.returncode == 0, done.stderr
