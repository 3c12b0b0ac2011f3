"""``hidl install``, for real: uv, a virtual environment, MPI ranks."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from hidl_cli.stack.installation import at, prefixes
from tests.conftest import REPOSITORY, Hidl
from tests.stack.conftest import recipe, site
from tests.stack.wheelhouse import make_wheel

LOCK = REPOSITORY / "recipes" / "locks" / "mpi-cp311-linux-x86_64-cpu.txt"


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")} if root.exists() else set()


def works(prefix: Path) -> bool:
    """Do two ranks of the installation meet?"""
    program = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2"
    command = [prefix / "bin" / "mpiexec", "-n", "2", prefix / "bin" / "python", "-c", program]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_a_stack_is_installed_verified_and_published(hidl: Hidl, root: Path) -> None:
    document = hidl.json("install", "mpi")
    (installed,) = document["installations"]
    prefix = Path(installed["prefix"])
    assert document["schema"] == "hidl.install/1"
    assert installed["action"] == "installed"
    assert works(prefix)
    assert prefix.parent.joinpath("current").resolve() == prefix.resolve()
    manifest = json.loads((prefix / "manifest.json").read_text())
    assert manifest["schema"] == "hidl.installation/1"
    assert set(manifest["packages"]) == {"mpich", "mpi4py", "numpy"}
    assert [check["ok"] for check in manifest["verification"]["checks"]].count(False) == 0
    assert Path(manifest["modulefile"]).is_file()
    assert Path(manifest["activation"]).is_file()
    assert list(prefix.glob("lib/python3*/site-packages/hidl_workloads/verify.py"))
    assert (prefix / "lib" / "libmpich.so").resolve() == (prefix / "lib" / "libmpi.so.12").resolve()


def test_open_mpi_is_verified_as_root_and_with_fewer_cores_than_ranks(hidl: Hidl, root: Path) -> None:
    one_core = sorted(os.sched_getaffinity(0))[:1]
    document = json.loads(
        subprocess.run(
            hidl.command("install", "openmpi", "--json"),
            env=hidl.environment,
            capture_output=True,
            check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, one_core),
        ).stdout
    )
    (installed,) = document["installations"]
    checks = json.loads(Path(installed["prefix"], "manifest.json").read_text())["verification"]["checks"]
    assert [check["ok"] for check in checks] == [True] * len(checks)


def test_again_is_nothing_to_do_and_starts_nothing(hidl: Hidl, root: Path) -> None:
    hidl("install", "mpi")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    again = hidl("install", "mpi", PATH="/nonexistent")  # how long it takes, the benchmarks hold
    assert (again.returncode, again.stderr) == (0, "")
    assert "nothing to do" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before


def test_several_stacks_are_installed_by_one_command(hidl: Hidl) -> None:
    recipe(hidl, "more", extends="mpi", packages={})
    actions = [found["action"] for found in hidl.json("install", "mpi", "more", "mpi")["installations"]]
    assert actions == ["installed", "installed"]


def test_a_dry_run_reports_everything_and_touches_nothing(hidl: Hidl, tmp_path: Path) -> None:
    (plan,) = hidl.json("install", "mpi", "--dry-run")["plans"]
    assert files(tmp_path) == set()
    assert [Path(step["argv"][0]).name for step in plan["steps"]] == ["uv", "uv", "mpiexec"]
    (installed,) = hidl.json("install", "mpi")["installations"]
    assert plan["plan"]["prefix"] == installed["prefix"]
    assert plan["plan"]["packages"] == installed["packages"]
    assert "nothing to do" in hidl("install", "mpi", "--dry-run").stdout


def test_the_printed_commands_are_what_a_person_can_type(hidl: Hidl, root: Path) -> None:
    shown = hidl("install", "mpi", "--dry-run").stdout
    lines = [line.removeprefix("  $ ") for line in shown.splitlines() if line.startswith("  $ ")]
    (installed,) = hidl.json("install", "mpi")["installations"]
    lock = Path(installed["prefix"], "lock.txt").read_text()
    shutil.rmtree(installed["prefix"])
    for number, line in enumerate(lines):
        if number == 1:
            Path(installed["prefix"], "lock.txt").write_text(lock)
        done = subprocess.run(["sh", "-c", line], env=hidl.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


TORCH = """
from types import SimpleNamespace

__version__ = "99.0"
version = SimpleNamespace(cuda="13.2", hip=None)
_C = SimpleNamespace(_cuda_getArchFlags=lambda: "sm_80 sm_90")
"""


def test_how_far_gpus_are_verified_without_one_is_said(hidl: Hidl, tmp_path: Path) -> None:
    site(hidl, "workstation", "title: ''\nextends: local\nnode_types: {host: {gpus: 2, gpu_arch: sm_80}}\n")
    recipe(hidl, "more", extends="mpi", packages={"torch": ""}, devices=["cpu", "gpu"], verify={"imports": ["torch"]})
    make_wheel(tmp_path / "house", "torch", "99.0", content=TORCH)
    installed = hidl("install", "more", "--site", "workstation", PIP_FIND_LINKS=str(tmp_path / "house"))
    assert installed.returncode == 0, installed.stderr
    said = "for sm_80 (torch 99.0: sm_80 sm_90); not run, because that requires a job with GPUs"
    assert f"GPU kernels: {said}" in installed.stderr
    shown = " ".join(hidl("stack", "show", "more", "--site", "workstation").stdout.split())
    assert f"GPU kernels {said}" in shown


@pytest.mark.parametrize(("site", "nodes"), [("lassen", "ppc64le (IBM POWER9)"), ("pitzer", "")])
def test_it_is_said_where_the_sites_nodes_are_of_another_architecture(hidl: Hidl, site: str, nodes: str) -> None:
    (plan,) = hidl.json("install", "pytorch", "--site", site, "--dry-run")["plans"]
    said = [each["text"] for each in plan["plan"]["advisories"] if each["id"] == "other-machine"]
    wanted = f"the nodes of {site} are {nodes}, but this installation is only for x86_64"
    assert said == ([wanted] if nodes else [])


def test_a_stack_is_installed_for_the_gpus_of_another_partition_than_the_default_one(hidl: Hidl) -> None:
    (plan,) = hidl.json("install", "pytorch", "--site", "anvil", "--dry-run")["plans"]
    (said,) = [each["text"] for each in plan["plan"]["advisories"] if each["id"] == "other-partition"]
    assert (plan["plan"]["accelerator"], "partition gpu has GPUs" in said) == ("cpu", True)

    (plan,) = hidl.json("install", "pytorch", "--site", "anvil", "--device", "gpu", "--dry-run")["plans"]
    assert (plan["plan"]["accelerator"], plan["plan"]["advisories"]) == ("cuda", [])
    lock = Path(hidl("stack", "lock", "pytorch", "--check", "--site", "anvil", "--device", "gpu").stdout.strip())
    assert lock.name == Path(plan["plan"]["lock"]["file"]).name == "pytorch-cp311-linux-x86_64-cuda.txt"
    assert lock.name in hidl("stack", "show", "pytorch", "--site", "anvil", "--device", "gpu", "--json").stdout

    site(hidl, "anvil", "title: ''\nextends: anvil\ninstall: {device: gpu}\n")
    (plan,) = hidl.json("install", "pytorch", "--site", "anvil", "--dry-run")["plans"]
    assert (plan["plan"]["accelerator"], plan["plan"]["advisories"]) == ("cuda", [])


@pytest.mark.parametrize(
    ("device", "words"), [("gpu", "site frontera has no open partition"), ("tpu", "invalid --device 'tpu'")]
)
def test_a_device_that_the_site_does_not_have_is_refused(hidl: Hidl, device: str, words: str) -> None:
    refused = hidl("install", "pytorch", "--site", "frontera", "--device", device, "--dry-run")
    assert refused.returncode == 2
    assert words in " ".join(refused.stderr.split())


def test_a_stale_lock_is_reported_and_made_again(hidl: Hidl, root: Path) -> None:
    recipe(hidl, "mpi", packages={"mpich": ">=5.0", "mpi4py": ">=4.1", "numpy": ">=2.1"})
    installed = hidl("install", "mpi")
    assert installed.returncode == 0, installed.stderr
    assert f"{LOCK} cannot be used" in installed.stderr
    assert "numpy>=2.0 is now numpy>=2.1" in installed.stderr
    assert (root / "locks" / LOCK.name).is_file()
    assert "nothing to do" in hidl("install", "mpi").stdout


def test_locked_refuses_a_stale_lock_and_says_what_changed(hidl: Hidl, root: Path) -> None:
    recipe(hidl, "mpi", packages={"mpich": ">=5.0", "mpi4py": ">=4.1", "numpy": ">=2.1"})
    refused = hidl("install", "mpi", "--locked")
    assert refused.returncode == 4
    assert "numpy>=2.0 is now numpy>=2.1" in refused.stderr
    assert "hidl stack lock mpi" in refused.stderr
    assert files(root) == set()


def test_a_users_lock_comes_before_the_shipped_one(hidl: Hidl) -> None:
    mine = hidl.config / "locks" / LOCK.name
    mine.parent.mkdir(parents=True)
    mine.write_text(LOCK.read_text())
    (plan,) = hidl.json("install", "mpi", "--dry-run", "--locked")["plans"]
    assert plan["plan"]["lock"]["file"] == str(mine)


def test_a_damaged_lock_is_invalid_input(hidl: Hidl) -> None:
    mine = hidl.config / "locks" / LOCK.name
    mine.parent.mkdir(parents=True)
    mine.write_text(LOCK.read_text() + "--extra-index-url https://example.invalid\n")
    refused = hidl("install", "mpi")
    assert refused.returncode == 3
    assert "--extra-index-url" in refused.stderr


def test_a_wheel_whose_hash_is_not_the_locks_is_refused(hidl: Hidl, tmp_path: Path, root: Path) -> None:
    recipe(hidl, "more", extends="mpi", packages={"toy": ""})
    house = {"PIP_FIND_LINKS": str(tmp_path / "house")}
    make_wheel(tmp_path / "house", "toy", "1.0")
    lock = Path(hidl("stack", "lock", "more", **house).stdout.strip())
    body, _, hashed = lock.read_text().rpartition("sha256:")
    lock.write_text(f"{body}sha256:{'0' * 64}{hashed[64:]}")
    refused = hidl("install", "more", **house)
    assert refused.returncode == 5
    assert "Hash mismatch for `toy==1.0`" in refused.stderr
    assert not list(root.glob("local/more/[0-9a-f]*"))


def test_offline_with_an_empty_cache_names_all_that_is_missing_before_it_starts(
    hidl: Hidl, root: Path, tmp_path: Path
) -> None:
    empty = {"UV_CACHE_DIR": str(tmp_path / "uv"), "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": ""}
    refused = hidl("install", "mpi", "--offline", **empty)
    assert refused.returncode == 4
    for package in ("mpich==", "mpi4py==", "numpy=="):
        assert package in refused.stderr
    assert not list(root.glob("local/mpi/[0-9a-f]*"))


def test_offline_from_a_warm_cache(hidl: Hidl) -> None:
    hidl("install", "mpi")  # fills uv's cache
    hidl("uninstall", "mpi")
    closed = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    assert hidl("install", "mpi", "--offline", **closed).returncode == 0


def test_a_verification_that_fails_publishes_nothing(hidl: Hidl, root: Path) -> None:
    recipe(hidl, "broken", extends="mpi", packages={}, verify={"imports": ["numpy", "no_such_module"]})
    failed = hidl("install", "broken")
    assert failed.returncode == 5
    assert "import no_such_module" in failed.stderr
    (log,) = (root / "logs").glob("local-broken-*.log")
    assert str(log) in failed.stderr
    assert not list(root.glob("local/broken/[0-9a-fc]*"))
    assert not (root / "modulefiles").exists()


@pytest.mark.deep
def test_another_hidl_gets_another_installation(hidl: Hidl, tmp_path: Path, root: Path) -> None:
    first = hidl.json("install", "mpi")["installations"][0]["prefix"]
    other = tmp_path / "other hidl"
    for part in ("hidl_cli", "hidl_workloads", "recipes", "site_configs", "templates"):
        shutil.copytree(REPOSITORY / part, other / part, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "hidl_workloads" / "__init__.py").open("a") as file:
        file.write("# changed\n")

    def theirs(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = hidl.environment | {"PYTHONPATH": str(other)}
        return subprocess.run(
            hidl.command(*arguments), env=environment, cwd=other, capture_output=True, text=True, check=False
        )

    shown = theirs("stack", "env", "mpi")
    assert (shown.returncode, "hidl install mpi" in shown.stderr) == (4, True)
    assert "another version of hidl" in shown.stderr
    second = json.loads(theirs("install", "mpi", "--json").stdout)["installations"][0]
    assert second["action"] == "installed"
    assert second["prefix"] != first
    back = hidl.json("install", "mpi")["installations"][0]
    assert (back["action"], back["prefix"]) == ("switched", first)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": "hidl.installation/9"}', '{"schema": 1}'])
def test_what_has_no_valid_manifest_is_not_an_installation(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert at(tmp_path) is None


@pytest.mark.deep
def test_a_damaged_manifest_is_installed_over(hidl: Hidl) -> None:
    prefix = Path(hidl.json("install", "mpi")["installations"][0]["prefix"])
    manifest = prefix / "manifest.json"
    manifest.write_text(manifest.read_text()[:-100])
    shown = hidl("stack", "env", "mpi")
    assert (shown.returncode, "damaged" in shown.stderr) == (4, True)
    assert hidl.json("install", "mpi")["installations"][0]["action"] == "installed"


@pytest.mark.deep
def test_an_interpreter_that_is_gone_is_noticed(hidl: Hidl) -> None:
    prefix = Path(hidl.json("install", "mpi")["installations"][0]["prefix"])
    (prefix / "bin" / "python").unlink()
    (prefix / "bin" / "python").symlink_to("/no/such/python3")
    assert hidl.json("install", "mpi")["installations"][0]["action"] == "installed"


@pytest.mark.deep
def test_a_publication_that_was_cut_short_is_completed(hidl: Hidl) -> None:
    installed = hidl.json("install", "mpi")["installations"][0]
    Path(installed["prefix"]).with_name("current").unlink()
    Path(installed["modulefile"]).unlink()
    assert hidl.json("install", "mpi")["installations"][0]["action"] == "switched"
    assert Path(installed["modulefile"]).is_file()
    assert "nothing to do" in hidl("install", "mpi").stdout


def test_a_cache_that_cannot_be_written_is_reported(hidl: Hidl, tmp_path: Path, root: Path) -> None:
    (tmp_path / "file").touch()
    failed = hidl("install", "mpi", UV_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert failed.returncode == 4
    assert "cannot write to uv's cache" in failed.stderr
    assert "set UV_CACHE_DIR to a writable directory" in failed.stderr
    assert prefixes(root / "local" / "mpi") == []


def test_a_root_that_cannot_be_written_is_reported(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = hidl("install", "mpi", "--prefix", str(tmp_path / "file"))
    assert refused.returncode == 4
    assert f"cannot install in {tmp_path / 'file'}" in refused.stderr
    assert "--prefix" in refused.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_root_is_reported(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    refused = hidl("install", "mpi", "--prefix", str(tmp_path / "shut"))
    assert (refused.returncode, "Permission denied" in refused.stderr) == (4, True)


def test_a_full_disk_is_reported(hidl: Hidl, tmp_path: Path) -> None:
    """A file system of 20 MiB: uv runs into its end. Mounting one needs root."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    try:
        failed = hidl("install", "mpi", "--prefix", str(small))
        assert failed.returncode == 5
        assert "the disk is full" in failed.stderr
        assert not list(small.glob("local/mpi/[0-9a-f]*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("name", ["a:b", "a$HOME", "a\nb"])
def test_a_prefix_in_which_nothing_works_is_refused(hidl: Hidl, tmp_path: Path, name: str) -> None:
    refused = hidl("install", "mpi", "--prefix", str(tmp_path / name))
    assert (refused.returncode, "cannot install stacks below" in refused.stderr) == (3, True)
    assert files(tmp_path) == set()


def test_an_unknown_stack_is_a_usage_error(hidl: Hidl) -> None:
    unknown = hidl("install", "mpi", "pytroch")
    assert (unknown.returncode, "pytorch" in unknown.stderr) == (2, True)


@pytest.mark.deep
def test_passwords_are_written_nowhere(hidl: Hidl, root: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "house", "toy", "1.0")
    recipe(hidl, "more", extends="mpi", packages={"toy": ""})
    secret = {"PIP_EXTRA_INDEX_URL": "http://user:hunter2@127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    shown = hidl("install", "mpi", "--dry-run", **secret)
    assert "http://***@127.0.0.1:9/simple" in shown.stdout
    failed = hidl("install", "more", **secret)
    assert (failed.returncode, "the package index cannot be reached" in failed.stderr) == (4, True)
    failed_later = hidl("install", "mpi", **secret)
    said = shown.stdout + failed.stdout + failed.stderr + failed_later.stdout + failed_later.stderr
    written = "".join(path.read_text(errors="replace") for path in root.rglob("*") if path.is_file())
    assert "hunter2" not in said + written
