"""The IBM Spectrum LSF backend, which uses ``bsub``, ``bjobs``, ``bkill`` and ``bhist``."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import HidlError, InvalidInput
from hidl_cli.launch.placement import Allocation
from hidl_cli.record import Run, State
from hidl_cli.schedulers.backend import (
    SUBMIT_SECONDS,
    Backend,
    JobReference,
    NoAnswer,
    Programs,
    Receipt,
    Refused,
    complaint,
    refusal,
    whole_lines,
)
from hidl_cli.schedulers.backend import options as site_options
from hidl_cli.schedulers.decision import Job, StartBlocker
from hidl_cli.site.job_options import render_settings
from hidl_cli.site.schema import Policies, Use

PROGRAMS = Programs(
    # Variables set by a job that hidl itself may run in, and one that silences bsub.
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
    # Without a limit, LSF's commands wait for its daemons forever.
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
    """Kill a job, unless it has ended or LSF no longer knows it."""
    completed = call("bkill", id)
    gone = re.search(r"already finished|No matching job found|is not found", completed.stdout + completed.stderr)
    if completed.status != 0 and not gone:
        raise HidlError(f"LSF could not kill job {id}: {complaint(completed)}", hint=f"try `bkill {id}` by hand")


def history(id: str) -> str:
    """Return what ``bhist`` reports about a job after reading LSF's log files. Raises ``NoAnswer``."""
    return call("bhist", "-l", "-n", "0", id).stdout


def describe(id: str, fields: str) -> list[str]:
    """Return the lines that ``bjobs`` prints about a job (none if it is unknown to LSF). Raises ``NoAnswer``."""
    completed = call("bjobs", "-a", "-noheader", "-o", fields, id)
    if re.search(rf"Job <{id}> is not found", completed.stdout + completed.stderr):
        return []
    if not _JOB.search(completed.stdout):
        raise NoAnswer(complaint(completed))
    return whole_lines(completed)


def query(fields: str) -> list[str]:
    """Return the lines that ``bjobs`` prints about the user's jobs, including those that ended within CLEAN_PERIOD.

    Raises ``NoAnswer``.
    """
    completed = call("bjobs", "-a", "-noheader", "-o", fields)
    printed = completed.stdout + completed.stderr
    silent = completed.status == 0 and not printed.strip()
    if silent or _JOB.search(completed.stdout) or _NO_JOB.search(printed):
        return whole_lines(completed)
    raise NoAnswer(complaint(completed))


# The ``#BSUB`` lines in a job script.


#: File for LSF's own report; the job writes stdout.log and stderr.log itself (``lsf.sh``).
REPORT = "lsf.log"

_MARK = "#BSUB"
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/+@=,#-]*")  # reservations are called user1#0


def header(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """Return the ``#BSUB`` lines that request ``allocation`` according to the site's policies.

    They do not request ranks, cores or GPUs: LSF allocates whole nodes, and jsrun distributes their resources. Raises
    ``InvalidInput`` if LSF lacks a required option, or if a value is not a plain word.
    """
    _refuse_unsupported(allocation, policies)
    options = [
        f"-nnodes {allocation.nodes}",
        *_option("-W", "a time limit", policies.time, _run_limit(allocation.time_limit)),
        *_option(policies.account_option, "an account", policies.account, allocation.account),
        *_option("-q", "a queue", policies.partition, allocation.queue),
        *_option("-U", "a reservation", policies.reservation, allocation.reservation),
        *_option("-J", "a job name", "required", allocation.job_name),
        f"-o {REPORT}",
        *(["-x"] if allocation.is_exclusive(policies) else []),
        *_environment(policies),
        *policies.directives,
        *render_settings("lsf", allocation.settings, policies),
    ]
    return tuple(f"{_MARK} {option}" for option in options)


def options(script: str) -> list[str]:
    """Return the options in a job script's ``#BSUB`` lines as command-line arguments.

    LSF reads ``#BSUB`` lines anywhere in a script. A ``#BSUB`` line below the first command can only be part of a
    value, and raises ``InvalidInput``.
    """
    words: list[str] = []
    at_the_top = True
    for number, line in enumerate(re.split(r"\r?\n|\r", script), start=1):
        at_the_top = at_the_top and (line.startswith("#") or not line.strip())
        if not line.lstrip().startswith(_MARK):
            continue
        if not at_the_top:
            raise InvalidInput(
                f"line {number} of the job script begins with {_MARK}, and LSF would read it as an option",
                hint="change the argument or variable that contains this line",
            )
        words += shlex.split(line.lstrip()[len(_MARK) :])
    return words


def _option(letter: str, what: str, use: Use, value: str | None) -> list[str]:
    if use == "never" or value is None:  # the plan reports required site options that the user did not specify
        return []
    if not _WORD.fullmatch(value):
        raise InvalidInput(
            f"invalid value {value!r} for {what} (LSF's {letter}): must be one plain word",
            hint="use letters, digits and _ . : / + @ = , # - only, and begin with a letter, digit or _",
        )
    return [f"{letter} {value}"]


def _run_limit(seconds: float | None) -> str | None:
    """Format a time limit as hours:minutes, rounded up, since LSF does not support seconds."""
    if seconds is None:
        return None
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02d}"


def _environment(policies: Policies) -> list[str]:
    """Return the ``-env`` option, without which LSF passes the whole environment to the job."""
    return [] if policies.export == "never" else [f"-env {policies.export}"]


def _refuse_unsupported(allocation: Allocation, policies: Policies) -> None:
    requested = {
        "a quality of service": allocation.qos if policies.qos != "never" else None,
        "a node feature (constraint)": allocation.constraint if policies.constraint != "never" else None,
        "memory per node": allocation.memory_gib if policies.memory in ("mem", "mem-per-cpu") else None,
    }
    for what, value in requested.items():
        if value is not None:
            raise InvalidInput(
                f"LSF has no option for {what}, but {value} is requested",
                hint="omit it, and add LSF options (-R, -M, -app) to the site's policies.directives",
            )
    if policies.gpus != "none":
        raise InvalidInput(
            f"the site's policies.gpus is {policies.gpus!r}, which only Slurm supports",
            hint="set it to none: with LSF, jsrun requests the GPUs",
        )


# Parsers for job descriptions. The exit status that LSF reports is only shown to users.


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
    "PROV": "LSF is powering up its hosts",
    "ZOMBI": "ZOMBI: the job was killed while LSF could not reach its host",
}

#: LSF pending reasons that are permanent.
_NEVER = ("dependency condition invalid", "dependency condition never", "condition invalid or never satisfied")
_NO_HOST = "no suitable hosts"
#: Seconds without a suitable host after which a job is assumed never to start. Before that, a host may be rebooting.
_NO_HOST_SECONDS = 600.0


def parse(lines: Iterable[str]) -> list[Job]:
    """Parse the output of ``bjobs``. A reason may span several lines and contain the delimiter."""
    rows: list[list[str]] = []
    for line in lines:
        if _RECORD.match(line):
            rows.append(line.split("|", len(_NAMES) - 1))
        elif rows and len(rows[-1]) == len(_NAMES):
            rows[-1][-1] += f" {line.strip()}"
    cells = ([cell.strip() for cell in row] for row in rows if len(row) == len(_NAMES))
    shown = (["" if cell == "-" else cell.rstrip("; ") for cell in row] for row in cells)
    fields = (dict(zip(_NAMES, row, strict=True)) for row in shown)
    return [_job(**row | {"job_description": row["job_description"] or "-"}) for row in fields]


def parse_history(output: str) -> list[Job]:
    """Parse the output of ``bhist -l``, which wraps lines anywhere and indents their continuations."""
    unwrapped = re.sub(r"\n[ \t]+", "", output)
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
            fields = {"exit_code": code[1] if code else "", "exit_reason": reason[1].strip() if reason else ""}
            jobs.append(_job(jobid=job[1], stat="EXIT", **fields))
    return [replace(job, ended=0.0) for job in jobs]


def never_starts(job: Job) -> StartBlocker | None:
    """Return the reason why a pending job will never start, or None if it may."""
    reason = job.reason.lower()
    if any(phrase in reason for phrase in _NEVER):
        return StartBlocker(job.reason)
    return StartBlocker(job.reason, after=_NO_HOST_SECONDS) if _NO_HOST in reason else None


def _job(*, jobid: str, stat: str, **fields: str) -> Job:
    """Convert a job's fields. Unknown states count as running."""
    state, mark = _BY_WORD.get(stat, State.RUNNING), fields.get("job_description", "")
    if state in (State.COMPLETED, State.FAILED):
        reason, code = fields.get("exit_reason", ""), fields.get("exit_code")
        term = reason.split(":")[0].strip()
        if term.startswith("TERM_") and term != "TERM_UNKNOWN":
            return Job(jobid, _BY_TERM.get(term, State.FAILED), stat, mark, reason, by_itself=False)
        return Job(jobid, state, stat, mark, f"LSF reports {stat}, exit code {code}" if code else "")
    pending = fields.get("pend_reason") if state is State.PENDING else None
    return Job(jobid, state, stat, mark, ": ".join(filter(None, (_ABOUT.get(stat), pending))))


_SUBMITTED = re.compile(r"Job <(\d+)> is submitted to (?:default )?queue")
_LIMIT = "threshold"  # bsub would keep retrying until other jobs of the user have started


class LsfBackend(Backend):
    """LSF, where a job is identified by its description, which is the run's id."""

    traits = SYSTEMS["lsf"]
    programs = PROGRAMS
    end_seconds = 45.0  # LSF sends SIGINT, SIGTERM and SIGKILL ten seconds apart

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        return header(allocation, policies)

    def hint(self) -> str:
        return "try again later; `lsid` shows whether LSF can be reached from here"

    def submit(self, run: Run) -> Receipt | None:
        # Some LSF installations only read #BSUB lines from standard input, and others, like Summit's, only from a named
        # script. All of them accept options, so the lines are also passed as options.
        given = options(run.script.read_text(encoding="utf-8"))
        directory = str(run.directory.resolve())
        where = [] if "%" in directory else ["-cwd", directory]  # LSF would expand the %
        command = ["bsub", *given, *where, "-Jd", run.id, "./job.sh"]
        try:
            completed = call(*command, timeout=SUBMIT_SECONDS, cwd=run.directory)
        except NoAnswer as error:
            if _LIMIT in str(error).lower():
                raise Refused(str(error), hint="wait until some of your other jobs have started") from error
            raise
        printed = _SUBMITTED.search(f"{completed.stdout}\n{completed.stderr}")  # the site's esub may print more text
        if printed is None:
            raise refusal(completed, ((r"", "see `bqueues -l` for the limits of the queues"),))
        return Receipt(printed[1])

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        """Return ``bsub`` for an interactive job, with a pseudo-terminal if the streams are a terminal."""
        words = site_options(header, "#BSUB", without=("-o", "-e"))
        return ("bsub", "-Is" if terminal else "-I", *words, "-Jd", mark, "./job.sh")

    def query(self, cluster: str | None) -> Sequence[str]:
        return query(FIELDS)

    def parse(self, lines: Iterable[str]) -> list[Job]:
        return parse(lines)

    def belongs_to(self, job: Job, run: Run, reference: JobReference) -> bool:
        # The description is the run's id, unless another program submitted the job.
        return reference.directory is not None or job.mark == run.id

    def kill(self, id: str, cluster: str | None) -> None:
        kill(id)

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        # LSF searches its log files for only one job at a time.
        return [job for id in ids if id for job in parse_history(history(id)) if job.id == id]

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        return next((job for job in parse(describe(id, FIELDS)) if job.id == id), None)

    def never_starts(self, job: Job) -> StartBlocker | None:
        return never_starts(job)


BACKEND = LsfBackend
