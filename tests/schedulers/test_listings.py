"""Listings of 10,000 jobs: right states, command lines that a kernel accepts, and no job lost by one that is cut."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers import backend as ticket
from hidl_cli.schedulers.backend import Backend, NoAnswer
from hidl_cli.schedulers.batch import BatchScheduler
from hidl_cli.schedulers.flux import FluxBackend
from hidl_cli.schedulers.lsf import LsfBackend
from hidl_cli.schedulers.pbs import PbsBackend
from hidl_cli.schedulers.slurm import SlurmBackend
from tests.waiting import until

JOBS = 10_000
STATES = (State.PENDING, State.RUNNING, State.COMPLETED, State.TIMEOUT)


def slurm_lines(ids: Sequence[int]) -> str:
    words = ("PENDING", "RUNNING", "COMPLETED", "TIMEOUT")
    return "".join(f"{id}|{words[id % 4]}|None|N/A|1|1:00:00|N/A|batch|n1|/runs/run-{id}\n" for id in ids)


def lsf_lines(ids: Sequence[int]) -> str:
    words = ("PEND|-|-", "RUN|-|-", "DONE|-|-", "EXIT|140|TERM_RUNLIMIT: job killed")
    return "".join(f"{id}|{words[id % 4]}|run-{id}|-\n" for id in ids)


def flux_document(ids: Sequence[int]) -> str:
    words = (
        {"state": "SCHED"},
        {"state": "RUN"},
        *({"state": "INACTIVE", "result": r} for r in ("COMPLETED", "TIMEOUT")),
    )
    return json.dumps(
        {"jobs": [{"id": id, "jobid": f"f{id}", "cwd": f"/runs/run-{id}", **words[id % 4]} for id in ids]}
    )


def pbs_blocks(ids: Sequence[int]) -> str:
    words = (("Q", ""), ("R", ""), ("F", "    Exit_status = 0\n"), ("F", "    Exit_status = -29\n"))
    return "".join(
        f"Job Id: {id}.server\n    Job_Name = hidl\n    job_state = {words[id % 4][0]}\n    queue = workq\n"
        f"{words[id % 4][1]}    Variable_List = PBS_O_HOME=/home/a,\n\tPBS_O_WORKDIR=/runs/run-{id},PBS_O_QUEUE=q\n\n"
        for id in ids
    )


@dataclass(frozen=True)
class Listing:
    """A batch system whose program prints what ``text`` makes of numbers of jobs."""

    backend: type[Backend]
    program: str
    text: Callable[[Sequence[int]], str]
    id: Callable[[int], str] = str


LISTINGS = {
    "slurm": Listing(SlurmBackend, "squeue", slurm_lines),
    "lsf": Listing(LsfBackend, "bjobs", lsf_lines),
    "flux": Listing(FluxBackend, "flux", flux_document, "f{}".format),
    "pbs": Listing(PbsBackend, "qstat", pbs_blocks, "{}.server".format),
}


class FakePrograms:
    """Programs of batch systems, each of which prints a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.prints("scontrol", "Slurmctld(primary) at n0 is UP\n")

    def prints(self, name: str, text: str) -> None:
        """Have a program print this."""
        (self.folder / f"{name}.txt").write_text(text)
        self.is_script(name, f'exec cat "{self.folder}/{name}.txt"')

    def is_script(self, name: str, script: str) -> None:
        """Have a program run this."""
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def lists(self, listing: Listing, numbers: Sequence[int], text: str | None = None) -> None:
        """Have the listing hold these jobs; ``text``: its words, if others."""
        self.prints("qselect", "".join(f"{number}.server\n" for number in numbers))
        self.prints(listing.program, listing.text(numbers) if text is None else text)
        if listing.backend is PbsBackend and text is None:  # qstat describes the jobs that it is asked about
            match = 'BEGIN {n = split(ids, a); for (i = 1; i <= n; i++) w[a[i]]} $3 in w {print $0 "\\n"}'
            select = f"awk -v RS= -v ids=\"$*\" '{match}'"
            self.is_script("qstat", f'{select} "{self.folder}/qstat.txt"')


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return FakePrograms(tmp_path / "bin")


@pytest.mark.parametrize("name", LISTINGS)
def test_each_of_10000_jobs_has_its_state_and_its_run(name: str, programs: FakePrograms) -> None:
    listing = LISTINGS[name]
    programs.lists(listing, range(1, JOBS + 1))
    backend = listing.backend()
    found = {job.id: job for job in backend.parse(backend.query(None))}
    assert len(found) == JOBS
    assert Counter(job.state for job in found.values()) == dict.fromkeys(STATES, JOBS // 4)
    for number in range(1, JOBS + 1):
        job = found[listing.id(number)]
        assert (job.state, job.mark.rpartition("/")[2]) == (STATES[number % 4], f"run-{number}")


@pytest.mark.parametrize(("name", "program"), [("slurm", "sacct"), ("flux", "flux"), ("pbs", "qstat")])
def test_10000_jobs_with_long_ids_are_asked_for_by_id(name: str, program: str, programs: FakePrograms) -> None:
    """A kernel accepts words of 128 KiB; ids of federations and of servers with long names make longer ones."""
    tail = {"slurm": "", "flux": "", "pbs": ".a-server-with-a-long-name.cluster.example.org"}[name]
    ids = [f"{4_000_000_000 + number}{tail}" for number in range(2 * JOBS)]
    programs.is_script(program, f'printf "%s\\n" "$*" >> "{programs.folder}/asked"; echo')
    if name == "pbs":
        programs.is_script("qstat", f'printf "%s\\n" "$*" >> "{programs.folder}/asked"; printf "\\n\\n"')
    if name == "flux":
        programs.is_script(
            "flux", f'printf "%s\\n" "$*" >> "{programs.folder}/asked"; echo "{{}}" | sed "s/.*/{{\\"jobs\\": []}}/"'
        )
    LISTINGS[name].backend().history(ids, time.time(), None)
    asked = (programs.folder / "asked").read_text().replace("--jobs=", " ").replace(",", " ").split()
    assert [word for word in asked if word.startswith("4000")] == ids


@pytest.mark.alone
@pytest.mark.parametrize("name", LISTINGS)
def test_the_time_to_read_a_listing_is_linear(name: str, programs: FakePrograms) -> None:
    def seconds(count: int) -> float:
        programs.lists(LISTINGS[name], range(1, count + 1))
        lines = LISTINGS[name].backend().query(None)
        times = []
        for _ in range(3):
            began = time.process_time()
            assert len(LISTINGS[name].backend().parse(lines)) == count
            times.append(time.process_time() - began)
        return min(times)

    assert seconds(JOBS) < 25 * seconds(JOBS // 10)


@pytest.mark.parametrize("name", LISTINGS)
@pytest.mark.parametrize("part", [0.1, 0.45, 0.7, 0.99])
def test_a_listing_that_is_cut_is_no_answer(name: str, programs: FakePrograms, part: float) -> None:
    """A job that is missing counts as lost after a while, so a cut answer must not be one."""
    listing = LISTINGS[name]
    text = listing.text(range(1, 9))
    kept = text[: int(part * len(text))]
    assert not kept.endswith("\n")
    programs.lists(listing, range(1, 9), kept)
    with pytest.raises(NoAnswer):
        listing.backend().query(None)


#: By batch system: a program, the words by which it is asked about job 1, and its words and status if it knows none.
ASKED_BY_ID = {
    "slurm": ("squeue", "*'--jobs=1 '*", "slurm_load_jobs error: Invalid job id specified", 1),
    "lsf": ("bjobs", "*' 1'", "Job <1> is not found", 255),
    "flux": ("flux", "*'--json f1'", "flux-jobs: ERROR: JobID f1 unknown", 1),
    "pbs": ("qstat", "*' 1.server'", "qstat: Unknown Job Id 1.server", 153),
}


@dataclass(frozen=True)
class Cut:
    """A run whose job runs, and is in no listing, each of which looks complete."""

    name: str
    run: Run
    programs: FakePrograms

    @property
    def scheduler(self) -> BatchScheduler:
        return BatchScheduler(LISTINGS[self.name].backend())

    def answers(self, script: str) -> None:
        """Have the program run the script if it is asked about the job by its id."""
        program, asked, _, _ = ASKED_BY_ID[self.name]
        nothing = "echo '{\"jobs\": []}'" if self.name == "flux" else ":"
        self.programs.is_script(program, f'case "$*" in\n{asked}) {script};;\n*) {nothing};;\nesac')

    def denies(self) -> None:
        """Have the program say that it does not know the job's id."""
        _, _, words, status = ASKED_BY_ID[self.name]
        self.answers(f"echo '{words}' >&2; exit {status}")

    def polled(self) -> Status:
        """Return the run's status once it is no longer being waited for."""
        scheduler = self.scheduler
        found: list[Status] = []

        def is_decided() -> bool:
            found[:] = scheduler.poll([self.run])
            return "waiting for the job to record its end" not in (
                found[0].reason or "waiting for the job to record its end"
            )

        until(lambda: is_decided() or (found[0].reason is None and found[0].state is State.RUNNING))
        return found[0]


@pytest.fixture(params=ASKED_BY_ID)
def cut(request: pytest.FixtureRequest, programs: FakePrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cut:
    listing = LISTINGS[request.param]
    monkeypatch.setattr(listing.backend, "grace_seconds", 0.1)
    monkeypatch.setattr(listing.backend, "first_interval", 0.02)
    monkeypatch.setattr(listing.backend, "this_cluster", lambda _: None)
    monkeypatch.setattr(listing.backend, "ping", lambda _: None)
    run = Run(tmp_path / "runs" / "run-1")
    run.directory.mkdir(parents=True)
    ticket.write_reference(run, request.param, ticket.JobReference(listing.id(1), None, time.time() - 1000))
    one = listing.text([1]).replace("/runs/", f"{tmp_path}/runs/")
    (programs.folder / "job").write_text(json.dumps(json.loads(one)["jobs"][0]) if request.param == "flux" else one)
    programs.prints("qselect", "")
    programs.is_script("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    programs.is_script("bhist", "echo 'No matching job found' >&2; exit 255")
    cut = Cut(request.param, run, programs)
    cut.answers(f'cat "{programs.folder}/job"')
    return cut


def test_a_job_that_a_listing_lacks_runs_if_the_scheduler_says_so_when_asked_by_id(cut: Cut) -> None:
    assert cut.polled().state is State.RUNNING


def test_a_job_that_the_scheduler_denies_by_id_is_lost(cut: Cut) -> None:
    cut.denies()
    assert cut.polled().state is State.LOST


@pytest.mark.parametrize("script", ["echo invalid argument >&2; exit 1", "exit 0"], ids=["error", "nothing"])
def test_a_job_is_not_lost_if_there_is_no_answer_about_its_id(cut: Cut, script: str) -> None:
    cut.answers(script)
    cut.programs.is_script("scontrol", "exit 0")
    status = cut.polled()
    assert (status.state, "a query by its id failed" in (status.reason or "")) == (State.PENDING, True)


def test_a_job_that_a_listing_lacks_is_cancelled(cut: Cut) -> None:
    """``hidl cancel`` must not call a run cancelled because a listing lacks its job, which goes on."""
    kills = {"slurm": "scancel", "lsf": "bkill", "pbs": "qdel"}
    killed = cut.programs.folder / "killed"
    _, _, words, status = ASKED_BY_ID[cut.name]
    gone = f"if [ -e {killed} ]; then echo '{words}' >&2; exit {status}; fi"
    cut.answers(f'{gone}; cat "{cut.programs.folder}/job"')
    if cut.name == "flux":
        script = cut.programs.folder.joinpath("flux").read_text().partition("\n")[2]
        cut.programs.is_script("flux", f'if [ "$1" = cancel ]; then touch {killed}; exit; fi\n{script}')
    else:
        cut.programs.is_script(kills[cut.name], f"touch {killed}")
    assert cut.scheduler.cancel(cut.run, state=State.CANCELLED)
    assert (killed.exists(), cut.run.status().state) == (True, State.CANCELLED)
