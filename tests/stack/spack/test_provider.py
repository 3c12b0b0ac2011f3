"""Installing with Spack: hidl's own part, with a small program at Spack's place, and all of it with a real one."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import CPUS, LivingCluster
from tests.conftest import Hidl
from tests.stack.conftest import site, until_gone
from tests.tiers import deep
from tests.waiting import until

INSTALL = ("install", "mpi", "--provider", "spack")


@pytest.fixture
def hidl(hidl: Hidl, spack: Path, stack_prefix: Callable[[str], Path]) -> Hidl:
    """hidl with that Spack, on a machine with an MPICH on PATH."""
    mpich = stack_prefix("mpi")
    # What stands at Spack's place brings a wheel of mpi4py, which looks for its library.
    library = {"LD_LIBRARY_PATH": str(mpich / "lib")}
    path = {"PATH": os.pathsep.join((str(mpich / "bin"), hidl.environment["PATH"]))}
    return Hidl(hidl.environment | path | library | {"HIDL_SPACK": str(spack), "SPACK_PYTHON": sys.executable})


def calls(spack: Path) -> list[str]:
    """The verbs that Spack was asked for."""
    return (
        [line.split()[0] for line in (spack / "calls").read_text().splitlines()] if (spack / "calls").exists() else []
    )


def published(root: Path) -> list[Path]:
    """What users would see."""
    return [*root.glob("local/mpi/current/manifest.json"), *root.glob("modulefiles/*")]


@pytest.fixture
def installed(hidl: Hidl) -> dict[str, Any]:
    """The manifest of an installation that went well."""
    (manifest,) = hidl.json(*INSTALL)["installations"]
    assert isinstance(manifest, dict)
    return manifest


def test_it_is_concretized_fetched_built_verified_on_two_ranks_and_published(
    hidl: Hidl, spack: Path, root: Path, installed: dict[str, Any]
) -> None:
    assert calls(spack) == ["concretize", "fetch", "install"]
    assert all(check["ok"] for check in installed["verification"]["checks"])
    assert len(published(root)) == 2
    again = hidl(*INSTALL)
    assert ("nothing to do" in again.stdout, calls(spack)) == (True, ["concretize", "fetch", "install"])


@pytest.mark.deep
def test_the_locked_hashes_stay_and_a_changed_environment_asks_for_a_new_lock(
    hidl: Hidl, root: Path, installed: dict[str, Any]
) -> None:
    shutil.rmtree(installed["prefix"])
    (locked,) = hidl.json(*INSTALL, "--locked")["installations"]
    assert locked["spack"]["hashes"] == installed["spack"]["hashes"]
    file = root / "locks" / "mpi-local-spack.json"
    file.write_text(file.read_text().replace(json.loads(file.read_text())["inputs"], "0" * 64))
    failed = hidl(*INSTALL, "--locked")
    assert (failed.returncode, "--locked forbids" in failed.stderr) == (4, True)


def test_show_names_the_lockfile_of_the_installation_that_is_in_use(hidl: Hidl, installed: dict[str, Any]) -> None:
    lock = hidl.json("stack", "show", "mpi")["lock"]
    assert (lock["provider"], lock["file"]) == ("spack", installed["lock"]["file"])
    assert lock["packages"]["py-mpi4py"] == "4.1.0"
    shown = hidl("stack", "show", "mpi").stdout
    assert re.search(r"py-mpi4py +py-mpi4py@4\.1: +4\.1\.0", shown), shown
    assert hidl.json("stack", "show", "mpi", "--provider", "wheels")["lock"]["provider"] == "wheels"
    without = hidl("stack", "show", "mpi", "--json", HIDL_SPACK="/nowhere")
    assert (json.loads(without.stdout)["lock"], "is not a Spack installation" in without.stderr) == (None, True)


@pytest.mark.parametrize("file", ["etc/spack/site/packages.yaml", "etc/spack/packages.yaml"])
def test_spacks_own_configuration_is_named_and_recorded(
    hidl: Hidl, spack: Path, installed: dict[str, Any], file: str
) -> None:
    (spack / file).parent.mkdir(parents=True, exist_ok=True)
    (spack / file).write_text("packages: {zlib: {require: '@1.2'}}\n")
    failed = hidl(*INSTALL, "--locked")
    assert (failed.returncode, "Spack's configuration is sha256:" in failed.stderr) == (4, True), failed.stderr
    again = hidl(*INSTALL)
    assert (again.returncode, f"Spack also reads its own {spack / file}" in again.stderr) == (0, True), again.stderr
    assert hidl(*INSTALL, "--locked").returncode == 0
    (spack / file).unlink()
    assert "created with sha256:" in hidl(*INSTALL, "--locked").stderr


def test_files_of_the_centre_are_recorded_by_their_content(hidl: Hidl, tmp_path: Path) -> None:
    file = tmp_path / "packages.yaml"
    file.write_text("packages: {zlib: {require: '@1.2'}}\n")
    site(
        hidl,
        "local",
        f"title: here\nextends: local\nspack: {{include: [{file}], config: {{config: {{ccache: true}}}}}}\n",
    )
    (manifest,) = hidl.json(*INSTALL)["installations"]
    environment = manifest["spack"]["environment"]["spack"]
    assert (environment["include"], environment["config"]["ccache"]) == ([str(file)], True)
    assert hidl(*INSTALL, "--locked").returncode == 0
    file.write_text("packages: {zlib: {require: '@1.3'}}\n")
    failed = hidl(*INSTALL, "--locked")
    assert (failed.returncode, f"Spack's include {file} is sha256:" in failed.stderr) == (4, True), failed.stderr


def test_further_specs_are_built_with_the_stack(hidl: Hidl) -> None:
    more = ("--spec", "hdf5 +mpi", "--spec", "zlib")
    shown = hidl(*INSTALL, *more, "--dry-run").stdout
    assert "  specs:\n    - py-mpi4py@4.1:\n    - hdf5 +mpi\n    - zlib\n" in shown.replace("'", "")
    assert hidl(*INSTALL, *more).returncode == 0
    locked = [hidl("stack", "lock", "mpi", "--provider", "spack", "--check", *words).returncode for words in (more, ())]
    assert locked == [0, 4]
    refused = hidl("install", "mpi", *more)
    assert (refused.returncode, "--spec requires the spack provider" in refused.stderr) == (2, True), refused.stderr


def test_the_environment_is_handed_to_plain_spack(hidl: Hidl, tmp_path: Path, installed: dict[str, Any]) -> None:
    place = tmp_path / "own environment"
    shown = hidl("stack", "env", "mpi", "--for-spack", str(place))
    assert shown.stdout.splitlines()[-1] == f"spack env activate '{place}'"
    content = yaml.safe_load((place / "spack.yaml").read_text())["spack"]
    store = installed["spack"]["environment"]["spack"]["config"]["install_tree"]["root"]
    assert content["upstreams"] == {"hidl": {"install_tree": store}}
    assert content["config"]["install_tree"]["root"] == str(place / "store")
    assert json.loads((place / "spack.lock").read_text())["roots"]
    (place / "spack.yaml").write_text("spack: {specs: [zlib]}\n")
    assert hidl("stack", "env", "mpi", "--for-spack", str(place)).stdout == shown.stdout
    assert (place / "spack.yaml").read_text() == "spack: {specs: [zlib]}\n"


def test_nothing_of_the_users_own_spack_is_touched(hidl: Hidl, spack: Path, installed: dict[str, Any]) -> None:
    assert {line.split()[-1] for line in (spack / "calls").read_text().splitlines()} == {"1"}


def test_the_verification_opens_no_network_interface(hidl: Hidl) -> None:
    """One may vanish at that moment; here UCX is told of one that does not exist."""
    gone = hidl(*INSTALL, UCX_TLS="tcp", UCX_NET_DEVICES="gone0")
    assert gone.returncode == 0, gone.stderr


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("fail:concretize", 4, "does not concretize"),
        ("checksum:fetch", 5, "the checksum of a source archive differs"),
        ("network:fetch", 4, "there is no network, or a source cannot be reached"),
        ("unsigned:install", 4, "a build cache lists a package that Spack does not accept"),
        ("full:install", 5, "the disk is full"),
        ("fail:install", 5, "py-mpi4py could not be built\n  >> 14    mpi.c:3:1: error: expected ';'"),
    ],
)
def test_each_failure_is_reported_and_nothing_is_published(
    hidl: Hidl, root: Path, fault: str, status: int, said: str
) -> None:
    failed = hidl(*INSTALL, STAND_IN=fault)
    assert (failed.returncode, said in failed.stderr, published(root)) == (status, True, []), failed.stderr


@pytest.mark.parametrize("verb", [deep("concretize"), deep("fetch"), "install"])
def test_killed_and_run_again_it_ends_installed(hidl: Hidl, spack: Path, root: Path, verb: str) -> None:
    child = Hidl(hidl.environment | {"STAND_IN": f"hang:{verb}"}).start(
        *INSTALL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until((spack / "hangs").exists, within=120)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert published(root) == []
    (manifest,) = hidl.json(*INSTALL)["installations"]
    assert all(check["ok"] for check in manifest["verification"]["checks"])


def test_a_dry_run_shows_the_environment_and_what_it_resolves_to_and_touches_nothing(hidl: Hidl, root: Path) -> None:
    shown = hidl(*INSTALL, "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "package py-mpi4py 4.1.0 /k7mk2zb" in shown.stdout
    assert "\nspack:\n  specs:\n    - 'py-mpi4py@4.1:'\n" in shown.stdout
    assert not root.exists()


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("frontier", "requires cray-mpich, but the file of site frontier does not specify where it is"),
        ("vista", "site vista has aarch64 processors, but this machine has x86_64"),
    ],
)
def test_a_dry_run_shows_the_environment_of_a_site_that_cannot_be_resolved_here(
    hidl: Hidl, spack: Path, machine: str, said: str
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the test is written for x86_64")
    shown = hidl(*INSTALL, "--site", machine, "--dry-run")
    assert (shown.returncode, said in shown.stderr, calls(spack)) == (4, True, []), shown.stderr
    assert "\nspack:\n  specs:\n    - 'py-mpi4py@4.1:'\n" in shown.stdout
    (plan,) = json.loads(hidl(*INSTALL, "--site", machine, "--dry-run", "--json").stdout)["plans"]
    assert (plan["plan"], said in plan["obstacle"]["error"], plan["obstacle"]["exit_code"]) == (None, True, 4)


def test_what_does_not_concretize_is_kept_where_the_hint_says(hidl: Hidl) -> None:
    for arguments in ((*INSTALL, "--dry-run"), INSTALL):
        failed = hidl(*arguments, STAND_IN="checksum:concretize")
        (log,) = re.findall(r"in (/\S+concretize\.log)", failed.stderr)
        assert "sha256 checksum failed" in Path(log).read_text(encoding="utf-8")
        assert Path(log).with_name("spack.yaml").read_text(encoding="utf-8").startswith("# Written by hidl")


def test_offline_names_what_is_missing_before_anything_is_built(hidl: Hidl, spack: Path, tmp_path: Path) -> None:
    assert hidl("stack", "lock", "mpi", "--provider", "spack").returncode == 0
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "manifest.json").write_text('{"schema": "hidl.mirror/1", "packages": {}}')
    (mirror / "spack-packages").mkdir()
    (mirror / "spack-packages" / "repo.yaml").touch()
    failed = hidl(*INSTALL, "--offline", "--mirror", str(mirror))
    assert (failed.returncode, "missing: py-mpi4py 4.1.0" in failed.stderr) == (4, True), failed.stderr
    assert "install" not in calls(spack)


@pytest.mark.parametrize(("variable", "said"), [("", "Spack not found"), ("/nowhere", "is not a Spack installation")])
def test_no_spack_is_a_missing_precondition(hidl: Hidl, variable: str, said: str) -> None:
    failed = hidl(*INSTALL, HIDL_SPACK=variable)
    assert (failed.returncode, said in failed.stderr) == (4, True)


def test_a_wrong_clone_of_spacks_packages_is_a_missing_precondition(hidl: Hidl, spack: Path, tmp_path: Path) -> None:
    failed = hidl(*INSTALL, HIDL_SPACK_PACKAGES=str(tmp_path))
    said = f"$HIDL_SPACK_PACKAGES: {tmp_path} is not a Spack package repository"
    assert (failed.returncode, said in failed.stderr, (spack / "calls").exists()) == (4, True, False), failed.stderr


@pytest.mark.timeout(3600)
def test_a_real_spack_builds_mpi4py_against_the_machines_mpich_and_two_ranks_run(real: Hidl) -> None:
    done = real(*INSTALL, "--json", timeout=3000)
    assert done.returncode == 0, done.stderr
    (manifest,) = json.loads(done.stdout)["installations"]
    assert all(check["ok"] for check in manifest["verification"]["checks"])


@pytest.mark.timeout(3600)
def test_a_real_spack_that_is_killed_goes_on_where_it_was(real: Hidl, root: Path) -> None:
    def ended_at(sign: str, number: signal.Signals) -> list[str]:
        """What hidl says until it says ``sign``, and its process group is ended with that signal."""
        child = real.start(*INSTALL, stderr=subprocess.PIPE, start_new_session=True)
        assert child.stderr is not None
        said = []
        for line in child.stderr:
            said.append(line)
            if sign in line:
                os.killpg(child.pid, number)
                break
        said += child.stderr.readlines()
        assert child.wait() != 0, said
        until_gone(root)
        assert published(root) == [], said
        return said

    ended_at("concretize stack mpi", signal.SIGKILL)
    begun = ended_at("fetch the sources", signal.SIGTERM)
    begun += ended_at("built ", signal.SIGKILL)
    begun += ended_at("built ", signal.SIGINT)
    done = real(*INSTALL, "--json", timeout=3000)
    assert done.returncode == 0, done.stderr
    (manifest,) = json.loads(done.stdout)["installations"]
    assert all(check["ok"] for check in manifest["verification"]["checks"])
    said = [*begun, *done.stderr.splitlines(keepends=True)]
    once = [line for line in said if "built " in line or "wrote lockfile" in line]
    assert len(once) == len(set(once)), said


@pytest.mark.parametrize("number", [signal.SIGTERM, deep(signal.SIGINT), deep(signal.SIGKILL)])
def test_the_job_of_a_build_is_cancelled_with_hidl_even_if_srun_does_not_react(
    hidl: Hidl, spack: Path, cluster: LivingCluster, number: signal.Signals
) -> None:
    settings = {"detect": True, "wheels": True, "build_on": "allocation", "target": "x86_64"}
    site(hidl, "builds", f"title: builds in jobs\nextends: test-cluster\nspack: {json.dumps(settings)}\n")
    line = (*INSTALL, "--site", "builds", "--verify", "here", "--time", "30")
    builds = Hidl(hidl.environment | cluster.environment | {"STAND_IN": "hang:install"})
    child = builds.start(*line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until((spack / "hangs").exists, within=120)
    name, state = cluster("squeue", "--noheader", "--format=%j %T").stdout.split()
    assert (re.fullmatch("hidl-build-[0-9a-f]{8}", name) is not None, state) == (True, "RUNNING"), name
    subprocess.run(["pkill", "-STOP", "-f", f"^srun .*--job-name={name} "], check=True)
    child.send_signal(number)
    child.wait()
    until(lambda: "CANCELLED" in cluster("sacct", "-X", "-n", "-o", "State", f"--name={name}").stdout, within=60)


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_a_real_spack_builds_in_a_job_that_ends_with_hidl_and_is_resumed(real: Hidl, cluster: LivingCluster) -> None:
    """The shell has not been told of the cluster, which runs in the default directory."""
    cluster("sacctmgr", "--immediate", "add", "account", "builders")
    cluster("sacctmgr", "--immediate", "add", "user", "root", "account=builders")
    spack = {"detect": True, "wheels": True, "build_on": "allocation"}
    site(real, "builds", f"title: builds in jobs\nextends: test-cluster\nspack: {json.dumps(spack)}\n")
    hidl = Hidl(real.environment | {"XDG_STATE_HOME": str(cluster.directory.parents[1]), "SLURM_CONF": ""})
    line = (*INSTALL, "--site", "builds", "--verify", "here", "--time", "30", "--account", "builders")
    child = hidl.start(*line, stderr=subprocess.PIPE)
    assert child.stderr is not None
    assert any("built " in line for line in child.stderr)
    running = cluster("squeue", "--noheader", "--format=%j %a %l %T").stdout
    child.kill()
    assert re.fullmatch("hidl-build-[0-9a-f]{8} builders 30:00 RUNNING\n", running), running
    until(lambda: not cluster("squeue", "--noheader").stdout, within=30)
    done = hidl(*line, "--json", timeout=3000)
    assert done.returncode == 0, done.stderr
    (manifest,) = json.loads(done.stdout)["installations"]
    assert all(check["ok"] for check in manifest["verification"]["checks"])
    listed = cluster("sacct", "-X", "-n", "-P", "--accounts=builders", "-o", "Account,Timelimit,AllocCPUS,State").stdout
    assert listed.splitlines()[-1] == f"builders|00:30:00|{CPUS}|COMPLETED", listed
