"""``hidl uninstall``: it removes what hidl has installed, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.waiting import until

pytestmark = pytest.mark.real


@pytest.fixture
def prefix(hidl: Hidl) -> Path:
    return Path(hidl.json("install", "mpi")["installations"][0]["prefix"])


def older(prefix: Path, id_: str = "0123456789ab") -> Path:
    """Another installation of the stack, not in use."""
    other = prefix.with_name(id_)
    other.mkdir()
    (other / "lock.txt").write_bytes((prefix / "lock.txt").read_bytes())
    return other


def test_prefix_link_and_modulefile_go_locks_and_logs_stay(hidl: Hidl, prefix: Path, root: Path) -> None:
    document = hidl.json("uninstall", "mpi")
    assert document["removed"] == [str(prefix)]
    left = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    assert {name for name in left if not name.startswith("logs/")} == {"local/mpi/.lock"}
    assert any(name.startswith("logs/") for name in left)
    again = hidl("uninstall", "mpi")
    assert (again.returncode, "not installed" in again.stderr) == (4, True)


def test_the_one_in_use_goes_and_with_all_every_one(hidl: Hidl, prefix: Path) -> None:
    other = older(prefix)
    assert hidl.json("uninstall", "mpi")["removed"] == [str(prefix)]
    assert "--all" in hidl("uninstall", "mpi").stderr
    assert hidl.json("uninstall", "mpi", "--all")["removed"] == [str(other)]


def test_links_out_are_not_followed(hidl: Hidl, prefix: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("")
    (prefix / "link").symlink_to(precious)
    prefix.with_name("aaaaaaaaaaaa").symlink_to(precious)
    assert hidl("uninstall", "mpi", "--all").returncode == 0
    assert (precious / "file").exists()


def test_a_stack_directory_behind_a_link_is_refused(hidl: Hidl, prefix: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    prefix.parent.rename(away)
    prefix.parent.symlink_to(away)
    refused = hidl("uninstall", "mpi")
    assert (refused.returncode, "nothing was removed" in refused.stderr) == (2, True)
    assert (away / prefix.name / "manifest.json").is_file()


def test_what_is_not_hidls_is_refused(hidl: Hidl, prefix: Path) -> None:
    stranger = prefix.with_name("cafecafecafe")
    stranger.mkdir()
    (stranger / "data").write_text("")
    refused = hidl("uninstall", "mpi", "--all")
    assert (refused.returncode, str(stranger) in refused.stderr) == (2, True)
    assert (stranger / "data").exists()
    assert prefix.exists()


def test_what_a_run_or_a_process_needs_stays(hidl: Hidl, prefix: Path) -> None:
    run = hidl.runs / "20260101-000000-job-0000"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"prefix": str(prefix)}))
    refused = hidl("uninstall", "mpi")
    assert (refused.returncode, f"run {run.name} has not ended" in refused.stderr) == (4, True), refused.stderr
    assert "--force" in refused.stderr
    assert (prefix / "manifest.json").is_file()
    shutil.rmtree(run)
    with subprocess.Popen(
        [prefix / "bin" / "python", "-c", "import mpi4py.MPI; input()"], stdin=subprocess.PIPE
    ) as live:
        until(lambda: str(prefix) in Path(f"/proc/{live.pid}/maps").read_text(), within=60)
        refused = hidl("uninstall", "mpi", "--all")
        assert (refused.returncode, f"process {live.pid} uses it" in refused.stderr) == (4, True), refused.stderr
        assert hidl.json("uninstall", "mpi", "--force")["removed"] == [str(prefix)]
        live.communicate(b"\n")


@pytest.mark.parametrize("damaged", ["status.json", "plan.json"])
def test_what_a_damaged_run_may_need_stays(hidl: Hidl, prefix: Path, damaged: str) -> None:
    """The job of a run whose node has failed may still be in the queue."""
    run = hidl.runs / "20260101-000000-job-0000"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"prefix": str(prefix)}))
    (run / "job.sh").write_text(f"#!/bin/bash\nsource '{prefix}/activate.sh'\n")
    (run / damaged).write_text("")
    refused = hidl("uninstall", "mpi")
    why = "may not have ended: its status cannot be read" if damaged == "status.json" else "has not ended"
    assert (refused.returncode, f"run {run.name} {why}" in refused.stderr) == (4, True), refused.stderr
    assert (prefix / "manifest.json").is_file()
    if damaged == "plan.json":
        (run / "status.json").write_text(
            '{"state": "FAILED", "step": 1, "steps": 1, "started": 1, "ended": 2, "exit_status": 1, "hosts": []}'
        )
    else:
        shutil.rmtree(run)
    assert hidl.json("uninstall", "mpi")["removed"] == [str(prefix)]


@pytest.mark.parametrize("through", ["current", "prefix"])
def test_a_python_that_has_mapped_no_file_of_the_prefix_keeps_it(hidl: Hidl, prefix: Path, through: str) -> None:
    python = (prefix.parent / "current" if through == "current" else prefix) / "bin" / "python"
    with subprocess.Popen([python, "-c", "print(); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as live:
        assert live.stdout is not None
        live.stdout.readline()
        refused = hidl("uninstall", "mpi")
        assert (refused.returncode, f"process {live.pid} uses it" in refused.stderr) == (4, True), refused.stderr
        live.communicate(b"\n")


#: Processes that use an installation without a word of their command line that begins with its path.
USERS = {
    "python of the activated stack": (["bash", "-c", ". {prefix}/activate.sh; exec python -c 'print(); input()'"], "/"),
    "python by PATH alone": (["env", "PATH={prefix}/bin:/usr/bin:/bin", "python", "-c", "print(); input()"], "/"),
    "python in its directory": (["./python", "-c", "print(); input()"], "{prefix}/bin"),
    "python below": (["bin/python", "-c", "print(); input()"], "{prefix}"),
    "python by the current link": (["mpi/current/bin/python", "-c", "print(); input()"], "{prefix}/../.."),
    "shell of the activated stack": (["bash", "-c", ". {prefix}/activate.sh; exec bash -c 'echo; read; :'"], "/"),
    "working directory": (["bash", "-c", "echo; read; :"], "{prefix}/lib"),
    "prefix as working directory": (["bash", "-c", "echo; read; :"], "{prefix}"),
    "open file": (["bash", "-c", "exec 7< {prefix}/manifest.json; echo; read; :"], "/"),
}


def test_a_process_that_uses_it_in_any_way_keeps_it(hidl: Hidl, prefix: Path) -> None:
    for user, (words, directory) in USERS.items():
        with subprocess.Popen(
            [word.format(prefix=prefix) for word in words],
            cwd=directory.format(prefix=prefix),
            env={"PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as live:
            assert live.stdout is not None
            live.stdout.readline()
            refused = hidl("uninstall", "mpi", "--yes")
            live.communicate(b"\n")
        assert refused.returncode == 4, user
        assert f"process {live.pid} uses it" in refused.stderr, user
        assert (prefix / "manifest.json").is_file()
    assert hidl.json("uninstall", "mpi")["removed"] == [str(prefix)]


def in_activated_shell(hidl: Hidl, prefix: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in an activated shell of its own session, in which ``$uninstall`` removes the stack."""
    return subprocess.run(
        ["setsid", "bash", "-c", f". {prefix}/activate.sh; exec bash -c '{script}'"],
        env=hidl.environment | {"uninstall": f"{sys.executable} -m hidl_cli uninstall mpi --yes"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", ["$uninstall; true", "yes | cat | $uninstall | cat | cat"])
def test_the_pipeline_of_an_activated_shell_does_not_keep_it(hidl: Hidl, prefix: Path, script: str) -> None:
    done = in_activated_shell(hidl, prefix, script)
    assert f"removed {prefix}" in done.stdout, done.stderr


@pytest.mark.parametrize("uninstall", ["$uninstall", "$uninstall < /dev/null | cat"])
def test_a_background_process_of_an_activated_script_keeps_it(hidl: Hidl, prefix: Path, uninstall: str) -> None:
    """It is in the same process group, and writes to the same pipe."""
    done = in_activated_shell(hidl, prefix, f"sleep 300 & {uninstall}; echo $!; kill $!")
    assert f"process {done.stdout.split()[-1]} uses it" in done.stderr, done.stderr
    assert (prefix / "manifest.json").is_file()


@pytest.mark.parametrize(
    "mention", ["{prefix}/bin/python", "{id}", "mpi/{id}", "/not/here/local/mpi/{id}", "$A/mpi/{id}:/b"]
)
def test_an_installation_that_a_file_names_stays(hidl: Hidl, prefix: Path, mention: str) -> None:
    note = hidl.config / "sites" / "ours.yaml"
    note.parent.mkdir(parents=True)
    note.write_text(f"# see '{mention.format(prefix=prefix, id=prefix.name)}'\n")
    refused = hidl("uninstall", "mpi")
    assert (refused.returncode, f"named in {note} as " in refused.stderr) == (4, True), refused.stderr
    assert f"{prefix.name}\n" in refused.stderr
    assert prefix.exists()


def test_another_stack_with_the_same_id_that_a_file_names_does_not_keep_it(
    hidl: Hidl, prefix: Path, root: Path
) -> None:
    other = root / "local" / "ours" / prefix.name
    elsewhere = root.parent / "elsewhere" / "local" / "mpi" / prefix.name
    for directory in (other, elsewhere):
        directory.mkdir(parents=True)
    note = hidl.config / "sites" / "ours.yaml"
    note.parent.mkdir(parents=True)
    note.write_text(
        f"mpi: {other}\nmodules: [ours/{prefix.name}]\npath: {elsewhere}/bin\nold: /not/here/local/ours/{prefix.name}\n"
    )
    assert hidl.json("uninstall", "mpi")["removed"] == [str(prefix)]


@pytest.mark.parametrize("name", ["../mpi", "/", ".", "MPI", ""])
def test_a_name_that_is_none_is_a_usage_error(hidl: Hidl, name: str) -> None:
    assert hidl("uninstall", name).returncode == 2
