"""One validation: its directory, what is in it, and how it takes its course."""

from __future__ import annotations

import hashlib
import json
import os
import pprint
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hidl_cli import __version__, paths
from hidl_cli.doctor.examine import Examined, before_runs
from hidl_cli.documents import write_json, write_text
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.plan.prepare import RunRequest
from hidl_cli.plan.prepare import prepare as prepare_run
from hidl_cli.record.run import Run, State
from hidl_cli.runs.follow import end
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.installation import hold_lock
from hidl_cli.validate import reframe
from hidl_cli.validate import reframe as backends
from hidl_cli.validate.bridge import RUNS_FILE, Place
from hidl_cli.validate.judge import Case, complete, judged, to_json
from hidl_cli.validate.reframe import NAMES, Listed, Selection, offered
from hidl_cli.validate.settings import configuration, word

SCHEMA = "hidl.validation/1"
_INTERVAL_SECONDS = 86400.0


@dataclass(frozen=True)
class Asked:
    """What ``hidl validate`` was asked for. ``partitions``: empty: the site's default one, or all where it has none."""

    place: Place
    partitions: Sequence[str] = ()
    tags: Sequence[str] = ()
    checks: Sequence[str] = ()
    jobs: int | None = None

    @property
    def selection(self) -> tuple[tuple[str, str], ...]:
        """Options of ``hidl validate``, and their values, that distinguish validations of one site."""
        names = ("hosts", "account", "qos", "reservation", "prefix", "device")
        given = ((name, getattr(self.place, name)) for name in names)
        lists = (("tag", self.tags), ("check", self.checks), ("partition", self.partitions))
        return (
            *((name, value) for name, values in lists for value in values),
            *((name, value) for name, value in given if value is not None),
        )

    def key(self, site: str) -> str:
        """Return a name of a validation of ``site``, in letters, digits and ``._-``.

        Only that of a single tag has no digest: names of several options, or with other characters, may look alike.
        """
        named = (value if name in ("tag", "check") else f"{name} {value}" for name, value in self.selection)
        readable = "-".join((site, *(re.sub(r"[^A-Za-z0-9.]+", "_", each) for each in named)))
        (kind, tag), *further = self.selection or (("", ""),)
        if kind == "tag" and not further and re.fullmatch(r"[A-Za-z0-9.]+", tag):
            return readable
        return f"{readable}-{hashlib.sha256(repr((site, self.selection)).encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Validation:
    """A validation by its directory, ready to be run."""

    id: str
    directory: Path
    site: Site
    asked: Asked
    configuration: dict[str, Any]

    @property
    def settings(self) -> Path:
        """ReFrame's configuration."""
        return self.directory / "settings.py"

    @property
    def log(self) -> Path:
        """What ReFrame printed."""
        return self.directory / "reframe.out"

    @property
    def report(self) -> Path:
        """ReFrame's own report."""
        return self.directory / "report.json"

    @property
    def selection(self) -> Selection:
        """Which checks are run."""
        return Selection(self.settings, word(self.site.name), self.asked.tags, self.asked.checks)

    @property
    def command(self) -> list[str]:
        """The command that runs them."""
        return reframe.run_command(self.selection, self.directory, self.report)

    def settings_text(self) -> str:
        """The text of ``settings``."""
        ours, place = backends.needed(self.site), self.asked.place
        registration = [
            "from hidl_cli.validate.reframe import register_backends",
            "from hidl_cli.validate.bridge import Place",
            "",
            f"register_backends(Place(site={place.site!r}, hosts={place.hosts!r}).load_site())  # {', '.join(ours)}",
        ]
        body = pprint.pformat(self.configuration, width=118, sort_dicts=False)
        return "\n".join(
            (
                f'"""ReFrame\'s configuration of site {self.site.name}, made by hidl {__version__}."""',
                "",
                *([*registration, ""] if ours else []),
                f"site_configuration = {body}",
                "",
            )
        )


def prepare(asked: Asked) -> Validation:
    """Resolve what was asked; nothing is touched. Raises ``UsageError`` for a partition that the site has not."""
    site = asked.place.load_site()
    unknown = [name for name in asked.partitions if name not in site.partitions]
    if unknown:
        known = ", ".join(site.partitions) or "none"
        raise UsageError(f"site {site.name} has no partition {unknown[0]!r}", hint=f"its partitions: {known}")
    usual = [site.default_partition] if site.default_partition else list(site.partitions)
    asked = replace(asked, place=replace(asked.place, site=asked.place.site or site.name))
    made = configuration(
        site,
        asked.place,
        partitions=list(asked.partitions) or usual,
        stacks=installation.in_use(site, asked.place.prefix),
        jobs=asked.jobs,
        accounting=reframe.accounting_answers(site),
        environ=os.environ,
    )
    name = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{site.name}-{secrets.token_hex(2)}"
    return Validation(name, root() / name, site, asked, made)


def root() -> Path:
    """Where validations lie."""
    return paths.user_state() / "validate"


def examine(validation: Validation) -> Examined:
    """What is cheap to know before anything is submitted: of the least job on each partition with each stack."""
    site, place = validation.site, validation.asked.place
    partitions = validation.configuration["systems"][0]["partitions"]
    plans = []
    for partition in (Place.of(each["extras"]) for each in partitions):
        for stack in installation.in_use(site, place.prefix):
            request = RunRequest(
                "mpi-sanity",
                site=place.site,
                stack=stack.prefix.parent.name,
                prefix=place.prefix,
                device=place.device,
                any_device=True,
                asked=partition.asked,
                hypothetical=True,
            )
            with suppress(HidlError):  # the check that asks for it says so
                plans.append(prepare_run(request, site))
    return before_runs(plans, site)


def begin(validation: Validation) -> tuple[list[Listed], list[Listed]]:
    """Make the directory; return the cases that will be run, and the tests that this site has not what they want for.

    Raises ``UsageError`` where no case is left, for ReFrame would call that a success.
    """
    validation.directory.mkdir(parents=True)
    write_text(validation.settings, validation.settings_text())
    found = reframe.cases(validation.selection, validation.directory)
    every = reframe.everything(validation.selection, validation.directory)
    left_out = [test for test in every if test.hash not in {case.hash for case in found}]
    asked = validation.asked
    unmet = [check for check in asked.checks if not any(case.fits(check) for case in found)]
    if not found or unmet:
        what = f"check {', '.join(unmet)}" if unmet else " and ".join(f"tag {tag}" for tag in asked.tags) or "anything"
        stacks = ", ".join(each["name"] for each in validation.configuration["environments"]) or "none"
        names = ", ".join(sorted({test.check for test in every}))
        raise UsageError(
            f"no case on site {validation.site.name} fits {what}; installed stacks: {stacks}"
            + (f"; checks that need more nodes or ranks: {names}" if names else ""),
            hint="hidl install STACK, or another --tag, --check or --partition",
        )
    return found, left_out


def reasons_left_out(validation: Validation, left_out: Sequence[Listed]) -> dict[str, str]:
    """Return why this validation runs none of these tests, by check: a scale that no partition allows, or the rest."""
    site = validation.site
    chosen = [each["extras"] for each in validation.configuration["systems"][0]["partitions"]]
    allowed = {scale for extras in chosen for scale in offered(site, Place.of(extras).partition)}
    return {
        check: _reason(site, [test for test in left_out if test.check == check], allowed)
        for check in sorted({test.check for test in left_out})
    }


def _reason(site: Site, tests: Sequence[Listed], allowed: Set[str]) -> str:
    scales = [test.scale for test in tests if test.scale is not None and test.scale not in allowed]
    parts = []
    if scales:
        names = sorted(set(scales), key=NAMES.index)
        others = [name for name in site.partitions if set(names) <= set(offered(site, name))]
        elsewhere = f"; --partition {others[0]} allows it" if others else ""
        parts.append(
            f"{len(scales)} case(s) of scale {', '.join(names)}, which the partition does not allow{elsewhere}"
        )
    if len(tests) > len(scales):
        parts.append(f"{len(tests) - len(scales)} case(s) that require a trait or a stack that is not here")
    return "; ".join(parts)


def run(validation: Validation, listed: Sequence[Listed], tell: Callable[[str], None]) -> list[Case]:
    """Run the cases, and return them judged; ``tell`` gets each line of ReFrame's progress.

    An interrupt ends the runs that were begun. Raises ``HidlError`` where ReFrame did not run all of them.
    """
    runs = validation.directory / "runs"
    try:
        with _following_log(validation.log, tell):
            reframe.run(
                validation.selection,
                validation.directory,
                log=validation.log,
                report=validation.report,
                more={RUNS_FILE: str(runs)},
            )
    except BaseException:
        _end_all(runs)
        raise
    cases = judged(reframe.read_report(validation.report))
    write_json(validation.directory / "validation.json", document(validation, cases))
    complete(cases, listed)
    return cases


def document(validation: Validation, cases: Sequence[Case], left_out: Sequence[Listed] = ()) -> dict[str, Any]:
    """The validation as plain values."""
    verdicts = [case.verdict for case in cases]
    return {
        "schema": SCHEMA,
        "validation": validation.id,
        "directory": str(validation.directory),
        "site": validation.site.name,
        "tags": list(validation.asked.tags),
        "checks": list(validation.asked.checks),
        "counts": {verdict: verdicts.count(verdict) for verdict in ("pass", "fail", "inconclusive", "skipped")},
        "cases": [to_json(case) for case in cases],
        "left_out": [test.name for test in left_out],
    }


@contextmanager
def alone(validation: Validation) -> Iterator[None]:
    """Only one validation of a site and selection at a time: a nightly that is late must not pile up on itself.

    Raises ``MissingPrecondition`` where another one runs, and says since when.
    """
    lock = root() / f".{validation.asked.key(validation.site.name)}.lock"

    def busy(owner: str) -> None:
        age = _age(lock)
        late = " It is older than a day, the interval of a nightly." if age and age > _INTERVAL_SECONDS else ""
        raise MissingPrecondition(
            f"this validation of site {validation.site.name} still runs: {owner.removeprefix('waiting for ')}.{late}",
            hint="wait for it, or see with hidl status which of its runs is slow, and end that with hidl cancel RUN",
        )

    with hold_lock(lock, busy):
        yield


def _age(lock: Path) -> float | None:
    """For how many seconds the lock has been held; None where its owner has not written it down."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        since = datetime.fromisoformat(json.loads(lock.read_text(encoding="utf-8"))["since"])
        return (datetime.now().astimezone() - since).total_seconds()
    return None


def _end_all(runs: Path) -> None:
    """End the runs that were begun and have not ended."""
    with suppress(OSError):
        for line in runs.read_text(encoding="utf-8").splitlines():
            with suppress(HidlError, OSError):
                end(Run(Path(line)), State.INTERRUPTED)


@contextmanager
def _following_log(log: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Pass on the lines that are added to ``log`` meanwhile."""
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(log, tell, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _follow(log: Path, tell: Callable[[str], None], stop: threading.Event) -> None:
    seen = 0
    last = False
    while not last:
        last = stop.wait(0.2)
        with suppress(OSError), log.open("rb") as file:
            file.seek(seen)
            new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            seen += len(whole)
            for line in whole.decode("utf-8", "replace").splitlines():
                tell(line)
