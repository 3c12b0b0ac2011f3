"""``hidl run`` options that become scheduler options, in the form that each scheduler uses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from hidl_cli.batch_systems import SSH, SYSTEMS
from hidl_cli.errors import InvalidInput, Problem, UsageError
from hidl_cli.site.directives import option_names, reject_directive
from hidl_cli.site.schema import Policies, Site

MailType = Literal["begin", "end", "fail"]


@dataclass(frozen=True)
class JobSettings:
    """Job settings that are written in the same way at all sites with the same scheduler.

    Attributes:
        licenses: Number of licenses by name.
        mail_types: Events about which to send mail.
        mail_user: Recipient of the mail.
        after: Ids of the jobs that must have ended successfully before this one starts.
        hold: True if the job is submitted in the held state.
        begin: Earliest start time, in seconds since the epoch.
        comment: Text that the scheduler stores with the job.
        scheduler_options: Additional options, one per line.
    """

    licenses: Mapping[str, int] | None = None
    mail_types: tuple[MailType, ...] = ()
    mail_user: str | None = None
    after: tuple[str, ...] = ()
    hold: bool = False
    begin: float | None = None
    comment: str | None = None
    scheduler_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Term:
    """The form of an option for one scheduler.

    Attributes:
        shown: The line shown in the documentation.
        lines: Function that returns the job script lines, or None if another module writes them.
    """

    shown: str
    lines: Callable[[JobSettings], list[str]] | None = None


def _counts(licenses: Mapping[str, int] | None, equals: str, separator: str) -> str:
    return separator.join(f"{name}{equals}{count}" for name, count in (licenses or {}).items())


def _time(settings: JobSettings, form: str) -> str:
    return f"{datetime.fromtimestamp(settings.begin or 0):{form}}"


def _mail_of_slurm(settings: JobSettings) -> list[str]:
    return [f"--mail-type={','.join(settings.mail_types).upper()}"]


def _mail_of_pbs(settings: JobSettings) -> list[str]:
    letters = {"begin": "b", "end": "e", "fail": "a"}
    return [f"-m {''.join(letters[each] for each in settings.mail_types)}"]


def _mail_of_lsf(settings: JobSettings) -> list[str]:
    if "fail" in settings.mail_types:
        raise UsageError("LSF cannot send mail only for failures", hint="use --mail-type end, which includes failures")
    return [{"begin": "-B", "end": "-N"}[each] for each in settings.mail_types]


_SELECT = "in `-l select=`"

#: The options by name, each with its form for every scheduler that supports it.
TERMS: Mapping[str, Mapping[str, _Term]] = {
    "--gpus": {
        "slurm": _Term("`--gres=gpu:N` or `--gpus-per-node=N`, depending on the policy `gpus`"),
        "lsf": _Term("whole nodes only; `jsrun -g`"),
        "pbs": _Term(f"`ngpus=N` {_SELECT}"),
        "flux": _Term("`--gpus-per-slot=N` for part of a node"),
        "local": _Term("not requested; only sets the number of GPUs that ranks share"),
        "ssh": _Term("not requested; only sets the number of GPUs that ranks share"),
    },
    "--gpus-per-rank": {
        "slurm": _Term("as `--gpus`"),
        "lsf": _Term("`jsrun -g`"),
        "pbs": _Term("as `--gpus`"),
        "flux": _Term("as `--gpus`"),
        "local": _Term("as `--gpus`"),
        "ssh": _Term("as `--gpus`"),
    },
    "--mem": {"slurm": _Term("`--mem=...M`"), "pbs": _Term(f"`mem=...mb` {_SELECT}")},
    "--exclusive": {
        "slurm": _Term("`--exclusive`"),
        "lsf": _Term("`-x`"),
        "pbs": _Term("`-l place=scatter:excl`"),
        "flux": _Term("`--exclusive`"),
    },
    "--share": {
        "slurm": _Term("no `--exclusive`"),
        "pbs": _Term("`-l place=scatter`"),
        "flux": _Term("`--nslots` with `--cores-per-slot`, without `--exclusive`"),
    },
    "--licenses": {
        "slurm": _Term("`--licenses=NAME:N`", lambda job: [f"--licenses={_counts(job.licenses, ':', ',')}"]),
        "lsf": _Term("`-R rusage[NAME=N]`", lambda job: [f'-R "rusage[{_counts(job.licenses, "=", ":")}]"']),
        "pbs": _Term("`-l NAME=N`", lambda job: [f"-l {_counts(job.licenses, '=', ',')}"]),
    },
    "--mail-type": {
        "slurm": _Term("`--mail-type=BEGIN,END,FAIL`", _mail_of_slurm),
        "lsf": _Term("`-B`, `-N`; not for `fail`", _mail_of_lsf),
        "pbs": _Term("`-m bea`", _mail_of_pbs),
    },
    "--mail-user": {
        "slurm": _Term("`--mail-user=`", lambda job: [f"--mail-user={job.mail_user}"]),
        "lsf": _Term("`-u`", lambda job: [f"-u {job.mail_user}"]),
        "pbs": _Term("`-M`", lambda job: [f"-M {job.mail_user}"]),
    },
    "--after": {
        "slurm": _Term("`--dependency=afterok:ID`", lambda job: [f"--dependency=afterok:{':'.join(job.after)}"]),
        "lsf": _Term("`-w done(ID)`", lambda job: [f'-w "{" && ".join(f"done({id})" for id in job.after)}"']),
        "pbs": _Term("`-W depend=afterok:ID`", lambda job: [f"-W depend=afterok:{':'.join(job.after)}"]),
        "flux": _Term("`--dependency=afterok:ID`", lambda job: [f"--dependency=afterok:{id}" for id in job.after]),
    },
    "--hold": {
        "slurm": _Term("`--hold`", lambda _: ["--hold"]),
        "lsf": _Term("`-H`", lambda _: ["-H"]),
        "pbs": _Term("`-h`", lambda _: ["-h"]),
        "flux": _Term("`--urgency=0`", lambda _: ["--urgency=0"]),
    },
    "--begin": {
        "slurm": _Term("`--begin=`", lambda job: [f"--begin={_time(job, '%Y-%m-%dT%H:%M:%S')}"]),
        "lsf": _Term("`-b`", lambda job: [f"-b {_time(job, '%Y:%m:%d:%H:%M')}"]),
        "pbs": _Term("`-a`", lambda job: [f"-a {_time(job, '%Y%m%d%H%M.%S')}"]),
        "flux": _Term("`--begin-time=`", lambda job: [f'--begin-time="{_time(job, "%Y-%m-%d %H:%M:%S")}"']),
    },
    "--comment": {
        "slurm": _Term("`--comment=`", lambda job: [f"--comment={_quoted(job.comment)}"]),
        "flux": _Term("`--setattr=user.comment=`", lambda job: [f"--setattr=user.comment={_quoted(job.comment)}"]),
    },
    "--job-name": {
        "slurm": _Term("`--job-name=`"),
        "lsf": _Term("`-J`"),
        "pbs": _Term("`-N`"),
        "flux": _Term("`--job-name=`"),
    },
    "--scheduler-option": {name: _Term("as given") for name in ("slurm", "lsf", "pbs", "flux")},
}
#: Names of the options, as used in the ``forbidden`` policy.
_FIELDS = {
    "--licenses": "licenses",
    "--mail-type": "mail_types",
    "--mail-user": "mail_user",
    "--after": "after",
    "--hold": "hold",
    "--begin": "begin",
    "--comment": "comment",
}
#: Short names of scheduler options, with the long names that ``TERMS`` uses.
_LETTERS = {
    "slurm": {"-d": "--dependency", "-H": "--hold", "-b": "--begin", "-L": "--licenses"},
}
#: Patterns for values, and hints.
_VALUES = {
    "--mail-user": (r"[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,199}", "for example you@example.org"),
    "--job-name": (r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", "use letters, digits and _ . - only"),
    "--comment": (r"[^\x00-\x1f\x7f\"'\\\\$`]{1,500}", "use one line without quotes, backslashes, $ and `"),
}
_TITLES = {**{name: system.title for name, system in SYSTEMS.items()}, "local": "the local scheduler", SSH: "ssh"}


def require_supported(site: Site, given: tuple[str, ...]) -> None:
    """Raise ``UsageError`` for the first ``given`` option that the site forbids or its scheduler lacks.

    Plug-in schedulers support none of the options.
    """
    scheduler = site.scheduler or ""
    for name in given:
        if name in site.policies.forbidden:
            raise UsageError(f"site {site.name} does not accept {name}", hint="remove this option")
        if scheduler not in TERMS[name]:
            having = ", ".join(_TITLES[each] for each in TERMS[name])
            raise UsageError(
                f"{_TITLES.get(scheduler, scheduler)} has no option for {name}",
                hint=f"remove it; only supported by {having}",
            )


def render_settings(scheduler: str, settings: JobSettings, policies: Policies) -> list[str]:
    """Return the job header lines for the settings. They must be the last lines in the header.

    Raises ``UsageError`` for an option that is given twice, and ``InvalidInput`` for a scheduler option that hidl
    rejects.
    """
    lines: list[str] = []
    for name, field in _FIELDS.items():
        term = TERMS[name].get(scheduler)
        if getattr(settings, field) and term is not None and term.lines is not None:
            lines += term.lines(settings)
    written = {each for line in lines for each in option_names(scheduler, line)} - {"-l", "-R", "-W", "--setattr"}
    for line in policies.directives:
        if twice := _repeated(written, scheduler, line):
            raise UsageError(
                f"the site's `directives` already contain {min(twice)}: {line}",
                hint="remove the option from the command",
            )
    problems = []
    for line in settings.scheduler_options:
        if not re.fullmatch(r"-[^\x00-\x1f\x7f]{1,500}", line):
            problems.append(Problem(f"--scheduler-option {line!r} is not an option", "one line that begins with -"))
        elif rejected := reject_directive(scheduler, line, policies.model_dump()):
            problems.append(Problem(f"--scheduler-option {line!r}: {rejected.message}", rejected.instead))
        elif twice := _repeated(written, scheduler, line):
            problems.append(Problem(f"--scheduler-option {line!r}: {min(twice)} is given twice", "each option once"))
    if problems:
        raise InvalidInput(f"{len(problems)} invalid value(s) for --scheduler-option", problems=problems)
    return [*lines, *settings.scheduler_options]


#: Header lines that start a job after another has ended, whether or not it succeeded.
_AFTER_ANY = {
    "slurm": "#SBATCH --dependency=afterany:{}",
    "lsf": '#BSUB -w "ended({})"',
    "pbs": "#PBS -W depend=afterany:{}",
    "flux": "# flux: --dependency=afterany:{}",
}


def starts_after(scheduler: str) -> bool:
    """Return True if the scheduler can start a job after another job has ended."""
    return scheduler in _AFTER_ANY


def line_after(scheduler: str, job: str) -> str:
    """Return the header line that starts a job after ``job`` has ended, whether or not it succeeded."""
    return _AFTER_ANY[scheduler].format(job)


def _repeated(written: set[str], scheduler: str, line: str) -> set[str]:
    """Return the options in ``written`` that a directive also sets, possibly under a short or abbreviated name."""
    names = [_LETTERS.get(scheduler, {}).get(name, name) for name in option_names(scheduler, line)]
    return {
        each
        for each in written
        for name in names
        if each == name or (name.startswith("--") and len(name) > len("--x") and each.startswith(name))
    }


def parse_licenses(text: str) -> dict[str, int]:
    """Parse ``NAME,NAME:COUNT``; raises ``UsageError`` for anything else."""
    found: dict[str, int] = {}
    for word in text.split(","):
        match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_.@-]*)(?::([1-9][0-9]*))?", word.strip())
        if match is None:
            raise UsageError(f"invalid --licenses {text!r}", hint="for example --licenses matlab:2,scratch")
        found[match[1]] = int(match[2] or 1)
    return found


def parse_mail_types(text: str) -> tuple[MailType, ...]:
    """Parse a list of ``begin``, ``end``, ``fail`` or ``all``; raises ``UsageError`` for anything else."""
    known: tuple[MailType, ...] = get_args(MailType)
    words = [word.strip().lower() for word in text.split(",")]
    if unknown := [word for word in words if word not in (*known, "all")]:
        raise UsageError(f"unknown --mail-type {unknown[0]!r}", hint=f"one of: {', '.join(known)}, all")
    return tuple(each for each in known if "all" in words or each in words)


def plain(name: str, value: str | None) -> str | None:
    """Return an option's value. Raises ``UsageError`` if it would not reach the scheduler unchanged."""
    if value is not None and not re.fullmatch(_VALUES[name][0], value):
        raise UsageError(f"invalid {name} {value!r}", hint=_VALUES[name][1])
    return value


def job_options_page() -> str:
    """Return the table in ``docs/reference/job-options.md``."""
    systems = ("slurm", "lsf", "pbs", "flux")
    rows = [
        f"| `{name}` | {' | '.join(terms[each].shown if each in terms else 'refused' for each in systems)} |"
        for name, terms in TERMS.items()
    ]
    titles = " | ".join(SYSTEMS[each].title for each in systems)
    return "\n".join([f"| option | {titles} |", "|---" * (len(systems) + 1) + "|", *rows]) + "\n"


def _quoted(text: str | None) -> str:
    """Quote text for a header line. The option has already rejected quotes, backslashes and line breaks."""
    word = text or ""
    return word if shlex.quote(word) == word else f'"{word}"'
