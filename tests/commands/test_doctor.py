"""``hidl doctor`` on this machine: what it says when all is well, and of faults that are really there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY, Hidl

SIZES = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
#: Commands in a mount namespace of their own, which vanishes with its mounts when they end.
ALONE = ("unshare", "--mount", "sh", "-c")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl with the stack mpi."""
    return hidl_with("mpi")


@pytest.fixture
def prefix(stack_prefix: Callable[[str], Path]) -> Path:
    """Where the stack mpi lies."""
    return stack_prefix("mpi")


@pytest.fixture
def shell(hidl: Hidl, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hidl]:
    """``shell(prefix)``: hidl as it is called from a shell that has sourced the script of that installation."""
    monkeypatch.chdir(REPOSITORY)  # hidl is found here, as that script unsets PYTHONPATH

    def activated(prefix: Path, **variables: str) -> Hidl:
        said = subprocess.run(
            ["sh", "-c", f". {prefix}/activate.sh && env -0"],
            env=hidl.environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        environment = dict(line.partition("=")[::2] for line in said.split("\0") if line)
        return Hidl(environment | {"PYTHONPATH": ""} | variables)

    return activated


def rules(document: dict[str, Any], *severities: str) -> set[str]:
    """The ids of what was found with one of these severities."""
    return {each["rule"] for each in document["findings"] if each["severity"] in severities}


def site(hidl: Hidl, name: str, **keys: Any) -> None:
    """Write a user's site that is this machine."""
    file = hidl.config / "sites" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump({"name": name, "title": "a machine", "extends": "local"} | keys))


def copied(prefix: Path, root: Path) -> Path:
    """The directory of a stack below ``root``, with links to the files of the installation, and none in use."""
    directory = root / "local" / "mpi"
    shutil.copytree(prefix, directory / prefix.name, symlinks=True, copy_function=os.link)
    return directory


def test_a_healthy_machine_has_no_finding_above_info(shell: Callable[..., Hidl], prefix: Path) -> None:
    document = shell(prefix).json("doctor")
    assert (document["schema"], document["site"], document["unknown"]) == ("hidl.doctor/1", "local", [])
    assert rules(document, "error", "warning") == set()


def test_another_mpiexec_that_is_first_on_path(
    shell: Callable[..., Hidl], prefix: Path, stack_prefix: Callable[[str], Path]
) -> None:
    stack = stack_prefix("openmpi")
    with_it = shell(stack, PATH=f"{prefix}/bin:{stack}/bin:{os.environ['PATH']}")
    ranks = ["mpiexec", "-n", "2", f"{stack}/bin/python", "-c", SIZES]
    alone = subprocess.run(ranks, env=with_it.environment, capture_output=True, text=True, check=True)
    assert alone.stdout.split() == ["1", "1"]
    assert rules(with_it.json("doctor", status=4), "error") == {"HD002"}


def test_what_a_shell_carries_that_does_not_suit_the_stack(
    shell: Callable[..., Hidl], prefix: Path, tmp_path: Path
) -> None:
    (tmp_path / "theirs" / "numpy").mkdir(parents=True)
    (tmp_path / "theirs" / "numpy" / "__init__.py").write_text("__version__ = '0'\n")
    with_it = shell(
        prefix,
        PYTHONPATH=f"{tmp_path}/theirs",
        MPI4PY_MPIABI="openmpi",
        MV2_USE_CUDA="1",
        http_proxy="http://me:secret@proxy.example:3128",
        LD_PRELOAD=f"{tmp_path}/libnowhere.so",
    )
    document = with_it.json("doctor", status=4)
    assert rules(document, "error") == {"HD004", "HD064"}
    assert rules(document, "warning") == {"HD021", "HD024", "HD062"}
    assert "secret" not in str(document)
    numpy = ["python", "-c", "import numpy; print(numpy.__version__)"]
    imported = subprocess.run(numpy, env=with_it.environment, capture_output=True, text=True, check=True)
    assert imported.stdout == "0\n"


def test_a_run_that_would_fail_is_not_begun(hidl: Hidl) -> None:
    words = ("run", "mpi-sanity", "--ranks-per-node", "2")
    stopped = hidl(*words, MPI4PY_MPIABI="openmpi")
    assert (stopped.returncode, "error HD004" in stopped.stderr, hidl.runs.exists()) == (4, True, False)
    looked_at = hidl(*words, "--dry-run", MPI4PY_MPIABI="openmpi", MV2_IBA_HCA="mlx5_0")
    assert (looked_at.returncode, "error HD004" in looked_at.stderr) == (0, True)
    assert "warning HD021" in looked_at.stderr
    assert hidl(*words, "--no-check", MPI4PY_MPIABI="openmpi").returncode == 8


def test_what_the_sites_file_gives_to_every_rank_stops_a_run_and_a_validation(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "theirs" / "numpy").mkdir(parents=True)
    site(hidl, "local", policies={"environment": {"PYTHONPATH": f"{tmp_path}/theirs"}})
    for words in (["run", "mpi-sanity"], ["validate", "--check", "mpi_sanity"]):
        stopped = hidl(*words)
        assert (stopped.returncode, "error HD064" in stopped.stderr) == (4, True), stopped.stderr
    assert not Path(hidl.environment["XDG_STATE_HOME"]).exists()


@as_root
def test_an_installation_that_cannot_be_executed(hidl: Hidl, prefix: Path) -> None:
    mounts = f"mount --bind {prefix} {prefix} && mount -o remount,bind,noexec {prefix} && "
    found = subprocess.run(
        [*ALONE, f'{mounts} exec "$@"', "sh", *hidl.command("doctor")],
        env=hidl.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, "error HD061" in found.stdout) == (4, True), found.stdout + found.stderr
    assert str(prefix) in found.stdout


@as_root
def test_a_disk_that_is_full_stops_a_run(hidl: Hidl) -> None:
    state = Path(hidl.environment["XDG_STATE_HOME"])
    state.mkdir()
    stopped = subprocess.run(
        [*ALONE, f'mount -t tmpfs -o size=1m none {state} && exec "$@"', "sh", *hidl.command("run", "mpi-sanity")],
        env=hidl.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (stopped.returncode, "error HD065" in stopped.stderr) == (4, True), stopped.stderr


def test_a_lost_link_is_restored_where_it_can_lead_to_one_only(hidl: Hidl, prefix: Path, tmp_path: Path) -> None:
    directory = copied(prefix, tmp_path / "root")
    where = ("--prefix", str(tmp_path / "root"))
    assert rules(hidl.json("doctor", *where), "warning") == {"HD083"}
    fixed = hidl.json("doctor", *where, "--fix")
    assert ([each["rule"] for each in fixed["fixed"]], fixed["findings"]) == (["HD083"], [])
    assert (directory / "current").readlink() == Path(prefix.name)
    assert (tmp_path / "root" / "modulefiles" / "local" / "mpi" / prefix.name).is_file()


def test_where_two_could_be_meant_the_user_chooses(hidl: Hidl, prefix: Path, tmp_path: Path) -> None:
    directory = copied(prefix, tmp_path / "root")
    other = directory / ("0" * 12)
    shutil.copytree(directory / prefix.name, other, symlinks=True, copy_function=os.link)
    manifest = (other / "manifest.json").read_text().replace(f'"id": "{prefix.name}"', f'"id": "{other.name}"')
    (other / "manifest.json").unlink()
    (other / "manifest.json").write_text(manifest)
    document = hidl.json("doctor", "--prefix", str(tmp_path / "root"), "--fix")
    assert (rules(document, "warning"), document["fixed"]) == ({"HD083"}, [])


def test_people_read_what_was_seen_and_what_fixes_it(hidl: Hidl) -> None:
    shown = hidl("doctor", MV2_USE_CUDA="1", MV2_IBA_HCA="mlx5_0")
    lines = shown.stdout.splitlines()
    assert lines[0] == "warning HD021 A tuning variable has no effect"
    assert [line.partition(":")[0].strip() for line in lines[1:6]] == ["seen", "fix", "seen", "fix", "why"]
    assert ": 2 warnings" in shown.stderr


def test_a_rule_is_explained_by_its_id(hidl: Hidl) -> None:
    shown = hidl("doctor", "explain", "hd083").stdout
    assert shown.startswith("HD083 (warning): ")
    assert [line.partition(":")[0] for line in shown.splitlines()[1:]] == ["why", "when", "--fix"]


def test_there_is_no_rule_of_that_id(hidl: Hidl) -> None:
    assert hidl("doctor", "explain", "HD999").returncode == 2


def test_a_stack_that_is_not_known_is_a_fault_of_the_command_line(hidl: Hidl) -> None:
    assert hidl("doctor", "--stack", "nothing").returncode == 2


def test_of_another_machines_site_its_file_is_looked_at_alone(hidl: Hidl) -> None:
    document = hidl.json("doctor", "--site", "frontera")
    assert document["findings"] == []
    assert "not part of site frontera" in document["unknown"][0]
