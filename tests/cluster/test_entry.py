"""Only processes that root started for a cluster are entered and signalled; others may carry the same marks."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from hidl_twin import entry, layout, marks, network
from hidl_twin.marks import Recorded

from tests.waiting import until

NOBODY = 65534
NAMESPACES = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root enters namespaces")


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys elsewhere than in /run/hidl."""
    place = tmp_path_factory.mktemp("runtime") / "hidl"
    monkeypatch.setattr(layout, "RUNTIME", place)
    monkeypatch.setattr(marks, "RUNTIME", place)


@contextmanager
def running(
    command: list[str], environment: dict[str, str], user: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends after 20 s at most."""
    group = None if user is None else user
    with subprocess.Popen(
        ["timeout", "--foreground", "--signal=KILL", "20", *command],
        env=environment,
        user=user,
        group=group,
        extra_groups=None if user is None else [],
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            for pid in [process.pid, *descendants(process.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def claims(directory: Path, role: str, **others: str) -> dict[str, str]:
    """The environment that anybody can give a process."""
    return {"PATH": os.environ["PATH"], "HIDL_CLUSTER_DIRECTORY": str(directory), "HIDL_CLUSTER_ROLE": role} | others


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Recorded]:
    """A recorded process with namespaces of its own."""
    with running(["unshare", *NAMESPACES, "sleep", "20"], marks.environment(tmp_path, "node1")):
        init = until(lambda: marks.pid_1_of_its_namespace(marks.find(tmp_path).get("node1", [])))
        assert init is not None
        until(lambda: Path(f"/proc/{init}/comm").read_text() == "sleep\n")
        yield marks.record(tmp_path, "node1", init)


def enter(node: Recorded, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    argv = [*network.entering(node.identity, entry.KINDS, Path.cwd()), *command]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


# --- other users ------------------------------------------------------------------------------------------------------


def test_a_node_of_another_user_is_neither_found_nor_entered_nor_killed(tmp_path: Path) -> None:
    marks.environment(tmp_path, "node1")  # there is a key
    hostile = ["unshare", "-Ur", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    script = "mount --bind /bin/false /usr/bin/sh; echo up; sleep 20; true"
    with running([*hostile, script], claims(tmp_path, "node1"), user=NOBODY) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"up\n"
        claimed = children(attacker.pid)
        init = children(claimed[0])[0]
        told = marks.strangers(tmp_path)
        marks.record(tmp_path, "node1", init)  # even if root were led to record it
        assert (marks.find(tmp_path), marks.recorded(tmp_path, "node1")) == ({}, None)
        assert any(f"process {init} of user {NOBODY}" in each for each in told)
        assert str(tmp_path) not in marks.directories()
        with entry.OpenProcess(init) as process:
            refused = enter(Recorded(init, process.identity), "id")
        assert (refused.returncode, refused.stdout) == (1, ""), refused
        marks.end([init, *claimed], signal.SIGKILL, 1)
        assert (attacker.poll(), Path(f"/proc/{init}").exists()) == (None, True)


@pytest.mark.parametrize("key", [{}, {"HIDL_CLUSTER_KEY": ""}, {"HIDL_CLUSTER_KEY": "0" * 64}])
@pytest.mark.parametrize("uids", [(0, 0, 0), (NOBODY, 0, 0), (NOBODY, 0, NOBODY)])
def test_a_process_with_roots_uid_that_the_cluster_did_not_start_is_left_alone(
    tmp_path: Path, key: dict[str, str], uids: tuple[int, int, int]
) -> None:
    """As a program with the set-uid bit, whose variables are its user's."""
    marks.environment(tmp_path, "x")
    become = f"import os, time; os.setresuid{uids}; print('up', flush=True); time.sleep(20)"
    with running([sys.executable, "-c", become], claims(tmp_path, "x", **key)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        (child,) = children(process.pid)
        marks.end([child], signal.SIGKILL, 1)
        assert (marks.find(tmp_path), process.poll()) == ({}, None)


def test_without_a_key_no_variable_makes_a_process_the_clusters(tmp_path: Path) -> None:
    with running(["sleep", "20"], claims(tmp_path, "x", HIDL_CLUSTER_KEY="")):
        assert marks.find(tmp_path) == {}


def test_root_alone_can_read_the_key(tmp_path: Path) -> None:
    key = marks.environment(tmp_path, "x")["HIDL_CLUSTER_KEY"]
    place = layout.runtime_directory(tmp_path)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (layout.RUNTIME, place, place / "key")] == [
        0o700,
        0o700,
        0o600,
    ]
    assert key == (place / "key").read_text()
    assert key not in str(marks.plain_environment())


@pytest.mark.parametrize("change", [lambda file: os.chown(file, NOBODY, NOBODY), lambda file: file.chmod(0o666)])
def test_a_key_that_others_could_have_written_counts_for_nothing(tmp_path: Path, change: object) -> None:
    environment = marks.environment(tmp_path, "x")
    change(layout.runtime_directory(tmp_path) / "key")  # type: ignore[operator]
    with running(["sleep", "20"], environment):
        assert marks.find(tmp_path) == {}


@pytest.mark.parametrize("position", range(8))
def test_a_record_of_another_process_is_not_entered(tmp_path: Path, node: Recorded, position: int) -> None:
    """As where the number belongs to a later process: pid, start time and each namespace must fit."""
    words = node.identity.split(":")
    words[position] = str(int(words[position]) + 1)
    (layout.runtime_directory(tmp_path) / "node1.process").write_text(":".join(words))
    assert marks.recorded(tmp_path, "node1") is None
    assert enter(Recorded(node.pid, ":".join(words)), "true").returncode == 1


# --- what a command finds there ---------------------------------------------------------------------------------------


def test_a_command_runs_in_all_namespaces_of_the_node(node: Recorded) -> None:
    kinds = " ".join(f"/proc/self/ns/{kind}" for kind in entry.KINDS)
    there = enter(node, "sh", "-c", f"readlink {kinds}").stdout.split()
    assert there == [os.readlink(f"/proc/{node.pid}/ns/{kind}") for kind in entry.KINDS]  # noqa: PTH115


@pytest.mark.parametrize("count", [0, 30, 300])
def test_many_open_descriptors_are_no_trouble_and_are_inherited(node: Recorded, count: int) -> None:
    with ExitStack() as stack:
        numbers = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
        for number in numbers:
            stack.callback(os.close, number)
        done = enter(node, "sh", "-c", "ls /proc/self/fd", pass_fds=numbers)
    found = {int(word) for word in done.stdout.split()}
    assert (done.returncode, done.stderr) == (0, "")
    assert found - {0, 1, 2} - set(numbers) <= {max(found - set(numbers))}  # that of ls itself
    assert set(numbers) <= found


@pytest.mark.parametrize("variables", [{}, {"LANG": "C", "A": "ü=\n", "PYTHONHOME": "/x", "LC_ALL": "C"}])
def test_the_environment_is_the_callers(node: Recorded, variables: dict[str, str]) -> None:
    environment = {"PATH": os.environ["PATH"], **variables}
    told = enter(node, "env", "-0", env=environment).stdout
    assert dict(line.split("=", 1) for line in told.split("\0") if line) == environment


def test_a_program_is_found_by_the_callers_path(node: Recorded, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "hello"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    assert enter(node, "hello", env={"PATH": f"{program.parent}:/usr/bin:/bin"}).stdout == "hello\n"
    assert enter(node, "hello", env={"PATH": "/usr/bin:/bin"}).returncode == 127
    assert enter(node, str(tmp_path / "bin"), env={"PATH": "/usr/bin"}).returncode == 126


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -15), ("kill -9 $$", -9)]
)
def test_it_ends_as_the_command_ends(node: Recorded, script: str, status: int) -> None:
    assert enter(node, "bash", "-c", script).returncode == status


def test_the_command_can_be_ended_through_a_closed_pipe(node: Recorded) -> None:
    assert shutil.which("yes")
    assert enter(node, "bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}").stdout == "y\n141\n"
