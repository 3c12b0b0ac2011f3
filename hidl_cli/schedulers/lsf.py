"""IBM Spectrum LSF: ``bsub``, ``bjobs``, ``bkill`` and ``bhist``."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import HidlError, InvalidInput
from hidl_cli.launch.placement import Allocation
from hidl_cli.record.run import Run, State
from hidl_cli.schedulers.backend import (
    SUBMIT_SECONDS,
    Backend,
    NoAnswer,
    Programs,
    Receipt,
    Refused,
    Ticket,
    complaint,
    refusal,
    whole_lines,
)
from hidl_cli.schedulers.backend import options as site_options
from hidl_cli.schedulers.decision import Job, Never
from hidl_cli.site.schema import Policies, Use

PROGRAMS = Programs(
    # The job that hidl itself may run in, and what makes bsub silent.
    dropped=(
        "BSUB_QUIET",
        "HIDL_RUN_ID",
        "LSB_BATCH_JID",
        "LSB_DJOB_HOSTFILE",
        "LSB_HOSTS",
        "LSB_INTERACTIVE",
        "LSB_JOBID",
        "LSB_JOBINDEX",
        "LSB_MCPU_HOSTS",
    ),
    # LSF's commands wait for its daemons for ever, unless they are told how often to try.
    added={"LSB_NTRIES": "1"},
    unreachable=re.compile(
        r"please wait|still trying|not responding|is down|cannot connect|cannot contact|connection refused"
        r"|timed? ?out|library call",
        re.IGNORECASE,
    ),
    waiting=re.compile(r"please wait|still trying|retrying in", re.IGNORECASE),
)
call = PROGRAMS.call

_JOB = re.compile(r"^\d+(\[\d+\])?\|", re.MULTILINE)
_NO_JOB = re.compile(r"No (unfinished |matching |started |pending )?job found")


def kill(id: str) -> None:
    """End a job; no error if it has ended, or LSF knows it no more."""
    completed = call("bkill", id)
    gone = re.search(r"already finished|No matching job found|is not found", completed.stdout + completed.stderr)
    if completed.status != 0 and not gone:
        raise HidlError(f"LSF did not end job {id}: {complaint(completed)}", hint=f"see what `bkill {id}` says")


def history(id: str) -> str:
    """Return what ``bhist`` says of a job from LSF's log files. Raises ``NoAnswer``."""
    return call("bhist", "-l", "-n", "0", id).stdout


def describe(id: str, fields: str) -> list[str]:
    """Return the lines of ``bjobs`` about one job; none if LSF says that it does not know it. Raises ``NoAnswer``."""
    completed = call("bjobs", "-a", "-noheader", "-o", fields, id)
    if re.search(rf"Job <{id}> is not found", completed.stdout + completed.stderr):
        return []
    if not _JOB.search(completed.stdout):
        raise NoAnswer(complaint(completed))
    return whole_lines(completed)


def query(fields: str) -> list[str]:
    """Return the lines of ``bjobs`` about all of the user's jobs, also those that ended within CLEAN_PERIOD.

    Raises ``NoAnswer``.
    """
    completed = call("bjobs", "-a", "-noheader", "-o", fields)
    printed = completed.stdout + completed.stderr
    silent = completed.status == 0 and not printed.strip()
    if silent or _JOB.search(completed.stdout) or _NO_JOB.search(printed):
        return whole_lines(completed)
    raise NoAnswer(complaint(completed))


# What a job script asks LSF for: its ``#BSUB`` lines, written and read.


#: LSF's own report goes there; the job writes stdout.log and stderr.log itself (templates/schedulers/lsf.sh.j2).
REPORT = "lsf.log"

_MARK = "#BSUB"
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/+@=,#-]*")  # reservations are called user1#0


def header(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """The ``#BSUB`` lines for the allocation, as the site's policies have them.

    Ranks, cores and GPUs are not asked for here: LSF gives whole nodes, and jsrun shares them out.
    Raises ``InvalidInput`` for what LSF has no option for, and for a value that is not a plain word.
    """
    _refuse_what_lsf_has_not(allocation, policies)
    options = [
        f"-nnodes {allocation.nodes}",
        *_option("-W", "a time limit", policies.time, _run_limit(allocation.time_limit)),
        *_option(policies.account_option, "an account", policies.account, allocation.account),
        *_option("-q", "a queue", policies.partition, allocation.queue),
        *_option("-U", "a reservation", policies.reservation, allocation.reservation),
        *_option("-J", "a job name", "required", allocation.job_name),
        f"-o {REPORT}",
        *(["-x"] if policies.exclusive else []),
        *_environment(policies),
        *policies.directives,
    ]
    return tuple(f"{_MARK} {option}" for option in options)


def options(script: str) -> list[str]:
    """The options that the ``#BSUB`` lines at the top of a job script hold, as words of a command line.

    LSF takes such a line for its own wherever it stands. So one below the first command, which can only be part of
    some value, raises ``InvalidInput``.
    """
    words: list[str] = []
    at_the_top = True
    for number, line in enumerate(re.split(r"\r?\n|\r", script), start=1):
        at_the_top = at_the_top and (line.startswith("#") or not line.strip())
        if not line.lstrip().startswith(_MARK):
            continue
        if not at_the_top:
            raise InvalidInput(
                f"line {number} of the job script begins with {_MARK}, and LSF would take it for an option",
                hint="it is part of an argument or a variable's value: change that",
            )
        words += shlex.split(line.lstrip()[len(_MARK) :])
    return words


def _option(letter: str, what: str, use: Use, value: str | None) -> list[str]:
    if use == "never" or value is None:  # the plan reports what the site requires and the user did not give
        return []
    if not _WORD.fullmatch(value):
        raise InvalidInput(
            f"invalid value {value!r} for {what} (LSF's {letter}): must be one plain word",
            hint="letters, digits and _ . : / + @ = , # - are allowed, with no sign at the beginning",
        )
    return [f"{letter} {value}"]


def _run_limit(seconds: float | None) -> str | None:
    """[hours:]minutes, for LSF knows no seconds: rounded up."""
    if seconds is None:
        return None
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02d}"


def _environment(policies: Policies) -> list[str]:
    """``-env``: without it LSF hands over the whole environment."""
    return [] if policies.export == "never" else [f"-env {policies.export}"]


def _refuse_what_lsf_has_not(allocation: Allocation, policies: Policies) -> None:
    asked = {
        "a quality of service": allocation.qos if policies.qos != "never" else None,
        "a node feature (constraint)": allocation.constraint if policies.constraint != "never" else None,
        "memory per node": allocation.memory_gib if policies.memory in ("mem", "mem-per-cpu") else None,
    }
    for what, value in asked.items():
        if value is not None:
            raise InvalidInput(
                f"LSF has no option for {what}, but {value} is asked for",
                hint="leave it out; what LSF has instead (-R, -M, -app) can stand in the site's policies.directives",
            )
    if policies.gpus != "none":
        raise InvalidInput(
            f"the site's policies.gpus is {policies.gpus!r}, which is a form of Slurm's",
            hint="make it none: with LSF, jsrun asks for the GPUs",
        )


# Jobs as LSF describes them, and what hidl makes of its words. Its exit status decides nothing.


_NAMES = ("jobid", "stat", "exit_code", "exit_reason", "job_description", "pend_reason")
FIELDS = f"{' '.join(_NAMES)} delimiter='|'"
_RECORD = re.compile(r"\d+(\[\d+\])?\|")

_STATES = {
    State.PENDING: "PEND PROV WAIT PSUSP FWD_PEND",
    State.RUNNING: "RUN USUSP SSUSP UNKWN",
    State.NODE_FAIL: "ZOMBI",
    State.COMPLETED: "DONE PDONE",
    State.FAILED: "EXIT PERR",
}
_BY_WORD = {word: state for state, words in _STATES.items() for word in words.split()}

_ENDED_BY = {
    State.TIMEOUT: "RUNLIMIT CPULIMIT DEADLINE WINDOW",
    State.OUT_OF_MEMORY: "MEMLIMIT SWAP",
    State.CANCELLED: "OWNER ADMIN FORCE_OWNER FORCE_ADMIN BUCKET_KILL CHKPNT EXTERNAL_SIGNAL ORPHAN_SYSTEM",
    State.PREEMPTED: "PREEMPT LOAD RC REQUEUE_OWNER REQUEUE_ADMIN REQUEUE_RC MC_RECALL",
    State.NODE_FAIL: "ZOMBIE RMS SLURM CSM_ALLOC KUBE REMOVE_HUNG_JOB",
    State.FAILED: "CWD_NOTEXIST DATA PRE_EXEC_FAIL PROCESSLIMIT THREADLIMIT OTHER",
}
_BY_TERM = {f"TERM_{word}": state for state, words in _ENDED_BY.items() for word in words.split()}

_ABOUT = {
    "PSUSP": "suspended while pending",
    "USUSP": "suspended by its owner or an administrator",
    "SSUSP": "suspended by LSF",
    "UNKWN": "LSF has lost contact with the job's host",
    "PROV": "LSF is waking up its hosts",
    "ZOMBI": "ZOMBI: the job was killed while LSF could not reach its host",
}

# Pending reasons that no waiting changes, in LSF's words.
_NEVER = ("dependency condition invalid", "dependency condition never", "condition invalid or never satisfied")
_NO_HOST = "no suitable hosts"
#: Seconds without any host after which a job counts as one that never starts: hosts come back after a reboot.
_NO_HOST_SECONDS = 600.0


def parse(lines: Iterable[str]) -> list[Job]:
    """Parse the answer of ``bjobs``. A reason may span several lines, and hold the delimiter."""
    rows: list[list[str]] = []
    for line in lines:
        if _RECORD.match(line):
            rows.append(line.split("|", len(_NAMES) - 1))
        elif rows and len(rows[-1]) == len(_NAMES):
            rows[-1][-1] += f" {line.strip()}"
    cells = ([cell.strip() for cell in row] for row in rows if len(row) == len(_NAMES))
    shown = (["" if cell == "-" else cell.rstrip("; ") for cell in row] for row in cells)
    told = (dict(zip(_NAMES, row, strict=True)) for row in shown)
    return [_job(**row | {"job_description": row["job_description"] or "-"}) for row in told]


def parse_history(answer: str) -> list[Job]:
    """Parse the answer of ``bhist -l``: jobs that ended long ago. Its lines are wrapped anywhere, and indented."""
    unwrapped = re.sub(r"\n[ \t]+", "", answer)
    jobs = []
    for block in re.split(r"(?m)^(?=Job <)", unwrapped):
        job = re.match(r"Job <(\d+)>", block)
        if job is None:
            continue
        code = re.search(r"(?i)exited with exit code (\d+)", block)
        reason = re.search(r"Completed <exit>;\s*(TERM_[^;.\n]*)", block)
        if re.search(r"Done successfully|Completed <done>", block):
            jobs.append(_job(jobid=job[1], stat="DONE"))
        elif code or reason or re.search(r"Completed <exit>|Exited by signal", block):
            said = {"exit_code": code[1] if code else "", "exit_reason": reason[1].strip() if reason else ""}
            jobs.append(_job(jobid=job[1], stat="EXIT", **said))
    return [replace(job, ended=0.0) for job in jobs]


def never_starts(job: Job) -> Never | None:
    """Return why a pending job would never start; None if it may."""
    words = job.reason.lower()
    if any(phrase in words for phrase in _NEVER):
        return Never(job.reason)
    return Never(job.reason, after=_NO_HOST_SECONDS) if _NO_HOST in words else None


def _job(*, jobid: str, stat: str, **told: str) -> Job:
    """An unknown word counts as RUNNING: a job ends only by a word that says so."""
    state, mark = _BY_WORD.get(stat, State.RUNNING), told.get("job_description", "")
    if state in (State.COMPLETED, State.FAILED):
        reason, code = told.get("exit_reason", ""), told.get("exit_code")
        term = reason.split(":")[0].strip()
        if term.startswith("TERM_") and term != "TERM_UNKNOWN":
            return Job(jobid, _BY_TERM.get(term, State.FAILED), stat, mark, reason, by_itself=False)
        return Job(jobid, state, stat, mark, f"LSF says {stat}, exit code {code}" if code else "")
    pending = told.get("pend_reason") if state is State.PENDING else None
    return Job(jobid, state, stat, mark, ": ".join(filter(None, (_ABOUT.get(stat), pending))))


_SUBMITTED = re.compile(r"Job <(\d+)> is submitted to (?:default )?queue")
_LIMIT = "threshold"  # bsub would try until others of the user's jobs have started


class Lsf(Backend):
    """Jobs are recognized by their description, which is the run's id."""

    traits = SYSTEMS["lsf"]
    programs = PROGRAMS
    end_seconds = 45.0  # SIGINT, SIGTERM and SIGKILL come ten seconds apart

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Backend``."""
        return header(allocation, policies)

    def hint(self) -> str:
        """See ``Backend``."""
        return "try again later; `lsid` says whether LSF can be reached from here"

    def submit(self, run: Run) -> Receipt | None:
        """See ``Backend``.

        LSF reads ``#BSUB`` lines either from standard input only or, as on Summit, from a named script only. So they
        are given as options too, which every LSF takes.
        """
        given = options(run.script.read_text(encoding="utf-8"))
        directory = str(run.directory.resolve())
        where = [] if "%" in directory else ["-cwd", directory]  # LSF would expand a %
        command = ["bsub", *given, *where, "-Jd", run.id, "./job.sh"]
        try:
            completed = call(*command, timeout=SUBMIT_SECONDS, cwd=run.directory)
        except NoAnswer as silence:
            if _LIMIT in str(silence).lower():
                raise Refused(str(silence), hint="wait until others of your jobs have started") from silence
            raise
        printed = _SUBMITTED.search(f"{completed.stdout}\n{completed.stderr}")  # a site's esub may print more
        if printed is None:
            raise refusal(completed, ((r"", "see `bqueues -l` for the limits of the queues"),))
        return Receipt(printed[1])

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        """See ``Backend``: an interactive job, with a pseudo-terminal if there is a terminal."""
        words = site_options(header, "#BSUB", without=("-o", "-e"))
        return ("bsub", "-Is" if terminal else "-I", *words, "-Jd", mark, "./job.sh")

    def query(self, cluster: str | None) -> Sequence[str]:
        """See ``Backend``."""
        return query(FIELDS)

    def parse(self, lines: Iterable[str]) -> list[Job]:
        """See ``Backend``."""
        return parse(lines)

    def is_of(self, job: Job, run: Run, ticket: Ticket) -> bool:
        """See ``Backend``: the description is the run's id; what another program submitted has its own, or none."""
        return ticket.directory is not None or job.mark == run.id

    def kill(self, id: str, cluster: str | None) -> None:
        """See ``Backend``."""
        kill(id)

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        """See ``Backend``: LSF's log files, a job at a time."""
        return [job for id in ids if id for job in parse_history(history(id)) if job.id == id]

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        return next((job for job in parse(describe(id, FIELDS)) if job.id == id), None)

    def never_starts(self, job: Job) -> Never | None:
        """See ``Backend``."""
        return never_starts(job)


BACKEND = Lsf
