"""The job script: held by a golden file, harmless whatever the values are."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from hidl_cli.launch.launchers.contract import Launch
from hidl_cli.launch.placement import Placement
from hidl_cli.plan.job_script import scheduler_values
from hidl_cli.templates import render_script
from tests.plan import golden_scripts
from tests.waiting import patience, until

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


VALUES = {
    "local_limit": 0,
    **scheduler_values("local"),
    "open_mpi": False,
    "hydra": False,
    "header": [],
    "modules": [],
    "mpi": None,
    "environment": {"OMP_NUM_THREADS": "1"},
    "origins": {},
    "preloaded_by": [],
    "until_settled": False,
    "container": False,
    "reader": (),
    "launches": True,
    "keeps_output": True,
    "copies_output": True,
    "timed": True,
    "meets": True,
    "cores_per_rank": 1,
    "node_memory": 2**30,
}


def script(
    argv: list[str],
    *,
    run: str = "run-1",
    title: str = "toy on local",
    activate: str = "/dev/null",
    local_limit: int = 0,
) -> str:
    one, two = Placement(1, 1, 1, 1, bind=True), Placement(1, 2, 2, 1, bind=True)
    plain = {"preflight": None, "copies": 0, "parser": None, "patterns": (), "timed": False, "unbound": None}
    step = {"title": "1 rank", "placement": one, "launch": Launch(tuple(argv))} | plain | {"patterns": ("found",)}
    checked = (
        step
        | plain
        | {
            "title": "2 ranks",
            "placement": two,
            "preflight": Launch(("check", "it")),
            "parser": "omb",
            "timed": True,
            "unbound": Launch(("unbound", "prog")),
        }
    )
    own = {"run": run, "title": title, "activate": activate, "local_limit": local_limit}
    return render_script("job.sh.j2", VALUES | own | {"steps": [step, checked]})


def test_the_script_is_the_golden_one() -> None:
    assert script(["/prefix/bin/mpiexec", "-n", "1", "prog", "--note=a b"], local_limit=600) == golden_scripts.read(
        "toy"
    )


@settings(max_examples=50, deadline=None)
@given(TEXT, TEXT, TEXT, st.lists(TEXT, min_size=1, max_size=3))
def test_no_value_changes_what_the_script_runs(run: str, title: str, activate: str, argv: list[str]) -> None:
    rendered = script(argv, run=run, title=title, activate=activate)
    assert subprocess.run(["bash", "-n"], input=rendered.encode(), capture_output=True, check=False).returncode == 0
    steps = [line for line in rendered.splitlines() if line.startswith("begin_step ")]
    assert len(steps) == 2


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render_script("job.sh.j2", {"run": "x"})


def test_an_invalid_variable_name_is_an_error() -> None:
    values = VALUES | {"run": "r", "title": "t", "activate": "a", "steps": []}
    values |= {"environment": {"A=1; touch /tmp/x; B": "1"}}
    with pytest.raises(ValueError, match="not a valid shell variable name"):
        render_script("job.sh.j2", values)


def test_an_error_in_the_script_itself_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(script(["true"], activate="/no/such/activation"))
    assert subprocess.run(["bash", file], capture_output=True, check=False).returncode != 0
    assert '"state": "FAILED"' in (tmp_path / "status.json").read_text()


def test_a_launch_that_the_signal_ends_before_the_script_is_told_was_cancelled(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(script(["sh", "-c", "echo TIMEOUT > reason; exit 255"]))
    assert subprocess.run(["bash", file], capture_output=True, check=False).returncode == 143
    assert '"state": "TIMEOUT", "exit_status": 143' in (tmp_path / "status.json").read_text()


def test_a_launch_that_failed_before_the_run_was_cancelled_has_failed(tmp_path: Path) -> None:
    """The signal comes while the script writes down how the launch ended."""
    file, date, begun, asked, go_on = (tmp_path / name for name in ("job.sh", "date", "begun", "asked", "go-on"))
    waits = f"[ ! -e {begun} ] || {{ touch {asked}; until [ -e {go_on} ]; do sleep 0.01; done; }}"
    date.write_text(f'#!/bin/sh\n{waits}\nexec /bin/date "$@"\n')
    date.chmod(0o755)
    text = script(["sh", "-c", f"touch {begun}; exit 3"])
    file.write_text(text.replace('write_status "$1" "$2" "$(date', f'write_status "$1" "$2" "$({date}'))
    job = subprocess.Popen(["bash", file])
    until(asked.exists)
    (tmp_path / "reason").write_text("CANCELLED")
    job.terminate()
    go_on.touch()
    assert job.wait() == 3
    assert '"state": "FAILED", "exit_status": 3' in (tmp_path / "status.json").read_text()


_CALLED = "awk cat cksum cut date dirname head mkdir mkfifo mktemp mv rm sleep stat tail tee tr uname wc"


@pytest.mark.parametrize("program", _CALLED.split())
def test_another_program_of_the_name_on_path_changes_nothing(tmp_path: Path, program: str) -> None:
    """It is first on PATH when the job starts, or after the stack has been activated."""
    hostile, activate, file = tmp_path / "hostile", tmp_path / "activate", tmp_path / "job.sh"
    hostile.mkdir()
    (hostile / program).write_text("#!/bin/sh\necho hijacked\nexit 1\n")
    (hostile / program).chmod(0o755)
    activate.write_text(f"PATH={hostile}:$PATH\n")
    metrics = 'echo "{}" > steps/$0/metrics.json; echo found'
    for path, activated in ((f"{hostile}:{os.environ['PATH']}", "/dev/null"), (os.environ["PATH"], str(activate))):
        file.write_text(script(["sh", "-c", metrics, "1"], activate=activated).replace("launch 2 check it", "true"))
        (tmp_path / "status.json").unlink(missing_ok=True)
        environment = os.environ | {"PATH": path}
        job = subprocess.run(["bash", file], env=environment, capture_output=True, text=True, check=False)
        assert '"state": "COMPLETED", "exit_status": 0' in (tmp_path / "status.json").read_text(), job.stderr
        assert "hijacked" not in job.stdout + job.stderr


def test_facts_of_an_outer_run_do_not_reach_the_ranks(tmp_path: Path) -> None:
    outer = {"HIDL_SITE_MPI": "mvapich", "HIDL_UNBOUND": "1", "HIDL_CORES_PER_RANK": "77", "HIDL_NODE_MEMORY": "9"}
    values = VALUES | {"cores_per_rank": 0, "node_memory": 0, "launches": True, "copies_output": False, "steps": []}
    text = render_script("job.sh.j2", values | {"run": "run-1", "title": "toy", "activate": "/dev/null"})
    (tmp_path / "job.sh").write_text(text.replace("finish COMPLETED 0", "env; finish COMPLETED 0"))
    job = subprocess.run(
        ["bash", tmp_path / "job.sh"], env=os.environ | outer, capture_output=True, text=True, check=True
    )
    assert "HIDL_RUN_ID=run-1" in job.stdout.split()
    assert [line for line in job.stdout.split() if line.partition("=")[0] in outer] == []


# --- Two runs on one machine

_REPORTS = 'echo "$0 ${HIDL_CORES_PER_RANK-no cores} ${HIDL_UNBOUND-}"'


def run_beside(directory: Path, lock: Path | str, program: str = "", flock: str = "flock") -> subprocess.Popen[str]:
    """A job of two steps, which report whether they are bound and run ``program``; ``lock`` stands for the cores."""
    directory.mkdir()
    step = {
        "title": "1 rank",
        "placement": Placement(1, 1, 1, 1, bind=True),
        "launch": Launch(("sh", "-c", f"{_REPORTS}; {program}", "bound")),
        "unbound": Launch(("sh", "-c", f"{_REPORTS}; {program}", "unbound")),
        "preflight": None,
        "copies": 0,
        "parser": None,
        "patterns": (),
        "timed": False,
    }
    own = {"run": "run-1", "title": "toy on local", "activate": "/dev/null", "steps": [step, step]}
    text = render_script("job.sh.j2", VALUES | own)
    (directory / "job.sh").write_text(text.replace("type -P flock", f"type -P {flock}"))
    return subprocess.Popen(
        ["bash", directory / "job.sh"],
        env=os.environ | {"HIDL_CORES_LOCK": str(lock)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launches(job: subprocess.Popen[str]) -> tuple[list[str], str]:
    """Return what its two steps report, and its stderr."""
    out, err = job.communicate(timeout=patience(60))
    assert job.returncode == 0
    return [line.strip() for line in out.splitlines() if "bound" in line], err


def is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    file = tmp_path / "cores"
    file.touch()
    return file


def test_the_second_of_two_runs_on_a_machine_is_not_bound_and_warns_once(tmp_path: Path, lock: Path) -> None:
    go_on = tmp_path / "go-on"
    one = run_beside(tmp_path / "one", lock, f"until [ -e {go_on} ]; do sleep 0.05; done")
    until(lambda: not is_free(lock))
    two = launches(run_beside(tmp_path / "two", lock))
    go_on.touch()

    warning = "hidl: warning: another run of hidl uses this machine's cores: ranks are not bound\n"
    assert two == (["unbound no cores 1"] * 2, warning)
    assert [(tmp_path / "two" / "steps" / step / "unbound").exists() for step in "12"] == [True, True]
    assert launches(one) == (["bound 1"] * 2, "")
    assert not (tmp_path / "one" / "steps" / "1" / "unbound").exists()
    assert launches(run_beside(tmp_path / "three", lock)) == (["bound 1"] * 2, "")


def test_a_bound_run_sees_another_that_is_not(tmp_path: Path, lock: Path) -> None:
    lock.with_name("possible").touch()
    go_on, end, begun = (tmp_path / name for name in ("go-on", "end", "begun"))
    one = run_beside(tmp_path / "one", lock, f"until [ -e {go_on} ]; do sleep 0.05; done")
    until(lambda: not is_free(lock))
    two = run_beside(tmp_path / "two", lock, f"touch {begun}; until [ -e {end} ]; do sleep 0.05; done")
    until(begun.exists)
    go_on.touch()
    bound, warning = launches(one)
    end.touch()
    launches(two)

    assert (bound, warning) == (["bound 1"] * 2, "hidl: warning: another run of hidl uses this machine's cores, too\n")
    assert [(tmp_path / name / "steps" / "1" / "shared").exists() for name in ("one", "two")] == [True, False]


def test_without_flock_a_run_warns(tmp_path: Path, lock: Path) -> None:
    job = run_beside(tmp_path / "one", lock, flock="no-such-flock")
    warning = "hidl: warning: no program flock: other runs on this machine may use the same cores\n"
    assert launches(job) == (["bound 1"] * 2, warning)


def test_what_a_program_leaves_behind_does_not_keep_the_cores(tmp_path: Path, lock: Path) -> None:
    leaves = f"setsid sleep 60 > /dev/null 2>&1 & echo $! > {tmp_path}/left"
    try:
        assert launches(run_beside(tmp_path / "one", lock, leaves)) == (["bound 1"] * 2, "")
        assert is_free(lock)
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_run_that_ends_early_leaves_the_cores(tmp_path: Path, lock: Path, by: signal.Signals) -> None:
    job = run_beside(tmp_path / "one", lock, f"echo $$ > {tmp_path}/rank; exec sleep 60")
    until(lambda: (tmp_path / "rank").exists() and (tmp_path / "rank").read_text())
    assert not is_free(lock)
    job.send_signal(by)
    job.wait(timeout=patience(30))
    until(lambda: is_free(lock))
    if by is signal.SIGKILL:
        os.kill(int((tmp_path / "rank").read_text()), signal.SIGKILL)
    job.communicate()


@pytest.mark.parametrize("kind", ["missing", "fifo", "directory", "empty"])
def test_ranks_are_bound_and_a_run_warns_if_nothing_can_be_locked(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "lock"
    {"fifo": os.mkfifo, "directory": os.mkdir}.get(kind, lambda _: None)(file)
    warning = f"hidl: warning: cannot lock {file}: other runs on this machine may use the same cores\n"
    if kind == "empty":
        assert launches(run_beside(tmp_path / "one", "")) == (["bound 1"] * 2, "")
    else:
        assert launches(run_beside(tmp_path / "one", file)) == (["bound 1"] * 2, warning)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="requires two processors")
@pytest.mark.parametrize(("hydra", "lock"), [(True, "cores"), (True, ""), (False, "cores")])
def test_hydra_does_not_bind_where_some_of_the_cores_belong_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hydra: bool, lock: str
) -> None:
    monkeypatch.setitem(VALUES, "hydra", hydra)
    monkeypatch.setenv("OMP_NUM_THREADS", "97")  # which nproc would print
    (tmp_path / "cores").touch()
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(ours)})
    try:
        job = run_beside(tmp_path / "one", tmp_path / lock if lock else "")
    finally:
        os.sched_setaffinity(0, ours)

    warning = "hidl: warning: this process may not use all of the machine's cores: ranks are not bound\n"
    assert launches(job) == ((["unbound no cores 1"] * 2, warning) if hydra else (["bound 1"] * 2, ""))
    assert not (tmp_path / "one/steps/1/unbound").exists()


def test_a_job_started_again_in_its_directory_keeps_the_results(tmp_path: Path, lock: Path) -> None:
    launches(run_beside(tmp_path / "one", lock))
    (tmp_path / "one" / "verdict.json").write_text("{}")
    subprocess.run(["bash", "job.sh"], cwd=tmp_path / "one", check=True, capture_output=True, timeout=patience(60))

    assert not (tmp_path / "one" / "verdict.json").exists()
    kept = tmp_path / "one" / "earlier.1"
    assert {"verdict.json", "status.json", "steps"} <= {each.name for each in kept.iterdir()}
    assert json.loads((kept / "status.json").read_text())["state"] == "COMPLETED"


def test_hosts_and_time_limit_of_an_outer_mpiexec_do_not_count(tmp_path: Path, lock: Path) -> None:
    names = ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE", "MPIEXEC_TIMEOUT")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setenv(name, "1")
        shown = "; ".join(f"echo bound ${{{name}-unset}}" for name in names)
        reports, _ = launches(run_beside(tmp_path / "one", lock, shown))
    assert reports == ["bound 1", *["bound unset"] * 3] * 2


def test_a_read_only_tmout_is_no_error(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "hardened").write_text("readonly TMOUT=900\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BASH_ENV", str(tmp_path / "hardened"))
        assert launches(run_beside(tmp_path / "one", lock)) == (["bound 1"] * 2, "")


def test_a_bound_run_sees_another_that_began_and_ended_during_its_step(tmp_path: Path, lock: Path) -> None:
    runs = tmp_path / "hidl" / "runs"
    runs.mkdir(parents=True)
    go_on = tmp_path / "go-on"
    one = run_beside(runs / "one", lock, f"until [ -e {go_on} ]; do sleep 0.05; done")
    until(lambda: not is_free(lock))
    time.sleep(1.1)  # some file systems have whole seconds only
    launches(run_beside(runs / "two", lock))
    go_on.touch()

    launches(one)
    assert (runs / "one" / "steps" / "1" / "shared").exists()
    assert not (runs / "one" / "steps" / "2" / "shared").exists()


def test_the_cores_of_a_machine_are_locked_by_a_file_of_root() -> None:
    found = Path("/sys/devices/system/cpu/online").stat()
    assert (found.st_uid, found.st_mode & 0o222) in ((0, 0), (65534, 0))  # 65534: root, as seen in a user namespace


@pytest.mark.real
@pytest.mark.parametrize("jump", [-3600, 0, 3600])
def test_a_launch_is_timed_though_the_clock_is_set_meanwhile(tmp_path: Path, jump: int) -> None:
    script = (
        f'set -euo pipefail; step=1; mkdir -p steps/1; date() {{ echo "$(($(command date +%s%N) + offset))e-9"; }}\n'
        f"{render_script('launchers/timed.sh.j2', {})}\n"
        f"program() {{ sleep 1; offset={jump}000000000; }}; offset=0; timed program 2"
    )
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, timeout=60)

    time, rate = json.loads((tmp_path / "steps/1/timing.json").read_text())["metrics"]
    assert 0.9 < time["value"] < 30
    assert rate["value"] == pytest.approx(2 / time["value"])


@pytest.mark.parametrize(
    ("host", "suffix", "address"),
    [("n1", "i", "n1i"), ("n1.cluster.org", "i", "n1i.cluster.org"), ("n1.cluster.org", "", "n1.cluster.org")],
)
def test_the_address_of_the_first_host_has_the_sites_suffix(
    tmp_path: Path, host: str, suffix: str, address: str
) -> None:
    (tmp_path / "steps" / "1").mkdir(parents=True)
    (tmp_path / "steps" / "1" / "hosts").write_text(f"{host}:4\nother:4\n")
    script = f"set -euo pipefail\nstep=1\n{render_script('launchers/run_ranks.sh.j2', {'meets': True})}\n"
    variables = {"HIDL_RUN_ID": "run", "HIDL_ADDRESS_SUFFIX": suffix, "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", "-c", f"{script}tell_program 2; echo $MASTER_ADDR"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{address}\n"
