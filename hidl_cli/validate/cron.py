"""Nightly validations, which run ``hidl validate`` from the user's crontab, Slurm's scrontab or a systemd timer.

Nightly validations never overlap: if the previous one is still running, the next one exits with an error (see
``session.alone``).
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hidl_cli import paths, process
from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, MissingPrecondition, ProcessFailed, UsageError
from hidl_cli.launch.options import clock
from hidl_cli.quoting import comment, sh, sh_line
from hidl_cli.site import hidl_cluster
from hidl_cli.validate.session import ValidationRequest

#: Variables that nightly validations need, but that cron does not set. They must not contain secrets.
_KEPT = re.compile(
    r"PATH|XDG_(CONFIG|STATE|DATA|CACHE)_HOME|PYTHONPATH"
    r"|MODULEPATH|LMOD_CMD|LMOD_PKG|MODULESHOME|MODULES_CMD|"
    + "|".join(variable for system in SYSTEMS.values() for variable in system.configuration)
)
_SECONDS = 30.0


@dataclass(frozen=True)
class Nightly:
    """A validation that runs every night.

    Attributes:
        key: The nightly validation's unique key.
        selection: ``hidl validate`` options that select the checks.
        hour: Hour in the machine's local time.
        minute: Minute in the machine's local time.
        command: Command to run.
        environment: Variables to set.
        log: File to which the output is appended.
    """

    site: str
    key: str
    selection: tuple[str, ...]
    hour: int
    minute: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path

    @classmethod
    def of(cls, site: str, request: ValidationRequest, at: str, further: Sequence[str] = ()) -> Nightly:
        """Return the nightly validation for a request.

        Args:
            site: Name of the site.
            request: The requested validation.
            at: Time of day, such as ``02:00``.
            further: Options that affect the output, such as ``--json``.

        Raises:
            UsageError: If ``at`` is not a time of day, or if a value contains a line break, which crontabs do not
                support.
        """
        match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", at)
        if match is None:
            raise UsageError(f"invalid time of day {at!r}", hint="for example, use --at 02:00")
        location = request.location
        selection = (f"--site={location.site or site}", *(f"--{name}={value}" for name, value in request.selection))
        words = [sys.executable, "-m", "hidl_cli", "validate", *selection]
        words += [f"--time={clock(location.time_limit)}"] if location.time_limit else []
        words += [f"--jobs={request.jobs}"] if request.jobs else []
        broken = next((word for word in words if len(word.splitlines()) > 1), None)
        if broken is not None:
            hint = "remove the option"
            raise UsageError(f"invalid value {broken!r}: nightly validations do not support line breaks", hint=hint)
        key = request.key(site)
        variables = sorted(hidl_cluster.environment().items())
        environment = {name: value for name, value in variables if _KEPT.fullmatch(name)}
        log = paths.user_state() / "validate" / f"{key}.log"
        command = (*words, *further)
        return cls(site, key, selection, int(match[1]), int(match[2]), command, environment, log)

    def shell(self) -> str:
        """Return a shell command line that includes the environment and the log."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return f"{sh_line(['env', *variables, *self.command])} >> {sh(str(self.log))} 2>&1"


class NightlyTable(Protocol):
    """A program that starts other programs at given times of day."""

    @property
    def name(self) -> str:
        """The program's name."""

    def text(self, nightly: Nightly) -> str:
        """Return the text that ``install`` writes."""

    def without(self, nightly: Nightly) -> str:
        """Return the text that remains after ``uninstall``."""

    def install(self, nightly: Nightly) -> None:
        """Install a nightly validation, replacing an earlier one with the same key."""

    def uninstall(self, nightly: Nightly) -> bool:
        """Remove a nightly validation and return whether it was installed."""

    def keys(self) -> Sequence[str]:
        """Return the keys of all nightly validations."""


def choose(kind: str | None, *, hypothetical: bool = False) -> NightlyTable:
    """Return the table named ``kind`` (default: the first one available on this machine).

    Args:
        kind: ``crontab``, ``scrontab`` or ``systemd``.
        hypothetical: Whether to accept a table whose program is missing, if ``kind`` is given.

    Raises:
        UsageError: If the name is unknown.
        MissingPrecondition: If the program is missing.
    """
    tables: dict[str, NightlyTable] = {
        "crontab": _Crontab("crontab"),
        "scrontab": _Crontab("scrontab"),
        "systemd": _SystemdTimer(),
    }
    programs = {"crontab": "crontab", "scrontab": "scrontab", "systemd": "systemctl"}
    if kind is not None and kind not in tables:
        raise UsageError(f"unknown value {kind!r} for --cron-with", hint=f"use one of: {', '.join(tables)}")
    for name in [kind] if kind else list(tables):
        if shutil.which(programs[name]) or (hypothetical and kind):
            return tables[name]
    raise MissingPrecondition(
        f"{kind or 'crontab, scrontab or systemctl'} not found on this machine",
        hint="to print a line for another scheduler, run: hidl validate --install-cron --dry-run --cron-with crontab",
    )


@dataclass(frozen=True)
class _Crontab:
    """The user's ``crontab`` or ``scrontab`` table, in which hidl's lines are enclosed by two marker lines."""

    name: str

    def text(self, nightly: Nightly) -> str:
        first, last = _marks(nightly)
        # In a crontab, an unescaped % starts the command's standard input.
        line = f"{nightly.minute} {nightly.hour} * * * {nightly.shell().replace('%', chr(92) + '%')}"
        return "\n".join((first, line, last)) + "\n"

    def without(self, nightly: Nightly) -> str:
        first, last = _marks(nightly)
        return re.sub(rf"(?ms)^{re.escape(first)}$.*?^{re.escape(last)}$\n?", "", self._read())

    def install(self, nightly: Nightly) -> None:
        nightly.log.parent.mkdir(parents=True, exist_ok=True)
        rest = self.without(nightly)
        self._write(rest + ("" if not rest or rest.endswith("\n") else "\n") + self.text(nightly))

    def uninstall(self, nightly: Nightly) -> bool:
        rest = self.without(nightly)
        found = rest != self._read()
        if found:
            self._write(rest)
        return found

    def keys(self) -> Sequence[str]:
        return re.findall(r"(?m)^# hidl validate (.*): begin$", self._read())

    def _read(self) -> str:
        """Read the user's table. The result is empty if there is no table or the program is missing."""
        if not shutil.which(self.name):
            return ""
        completed = process.run([self.name, "-l"], timeout=_SECONDS, check=False)
        if completed.status == 0:
            return completed.stdout
        if re.search(r"no (s?crontab|entries)|not found", completed.stderr, re.IGNORECASE):
            return ""
        raise HidlError(f"{self.name} -l failed: {completed.stderr.strip()}", hint="no changes were made")

    def _write(self, text: str) -> None:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".cron") as file:
            file.write(text)
            file.flush()
            try:
                process.run([self.name, file.name], timeout=_SECONDS)
            except ProcessFailed as error:
                raise MissingPrecondition(
                    f"{self.name} rejected the nightly validation: {error.output.strip()}",
                    hint="ask the site's administrators who may use it, or try --cron-with systemd",
                ) from error


class _SystemdTimer:
    """A systemd user timer, which runs while the user is logged in, or always after ``loginctl enable-linger``."""

    name = "systemd"

    def text(self, nightly: Nightly) -> str:
        return "".join(f"# {path}\n{text}\n" for path, text in self._units(nightly).items())

    def without(self, nightly: Nightly) -> str:
        return "".join(f"# {path} is removed\n" for path in self._units(nightly) if path.exists())

    def install(self, nightly: Nightly) -> None:
        nightly.log.parent.mkdir(parents=True, exist_ok=True)
        for path, text in self._units(nightly).items():
            write_text(path, text)
        self._systemctl("daemon-reload")
        self._systemctl("enable", "--now", f"{self._unit(nightly)}.timer")

    def uninstall(self, nightly: Nightly) -> bool:
        units = [path for path in self._units(nightly) if path.exists()]
        if units:
            self._systemctl("disable", "--now", f"{self._unit(nightly)}.timer")
        for path in units:
            path.unlink()
        return bool(units)

    def keys(self) -> Sequence[str]:
        found = sorted((paths.user_config().parent / "systemd" / "user").glob("hidl-validate-*.timer"))
        return [file.stem.removeprefix("hidl-validate-") for file in found]

    @staticmethod
    def _unit(nightly: Nightly) -> str:
        return "hidl-validate-" + re.sub(r"[^A-Za-z0-9_-]", "_", nightly.key)

    def _units(self, nightly: Nightly) -> dict[Path, str]:
        directory, unit = paths.user_config().parent / "systemd" / "user", self._unit(nightly)
        title = comment(f"hidl validate {nightly.key}")
        # systemd expands % and $ itself, and uses C-style quotes instead of shell quotes.
        shell = nightly.shell().replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
        service = f'[Unit]\nDescription={title}\n\n[Service]\nType=oneshot\nExecStart=/bin/sh -c "{shell}"\n'
        when = f"OnCalendar=*-*-* {nightly.hour:02d}:{nightly.minute:02d}:00\nPersistent=true"
        timer = f"[Unit]\nDescription={title}\n\n[Timer]\n{when}\n\n[Install]\nWantedBy=timers.target\n"
        return {directory / f"{unit}.service": service, directory / f"{unit}.timer": timer}

    def _systemctl(self, *words: str) -> None:
        try:
            process.run(["systemctl", "--user", *words], timeout=_SECONDS)
        except ProcessFailed as error:
            raise MissingPrecondition(
                f"systemctl --user {words[0]} failed: {error.output.strip()}",
                hint="enable a user session with loginctl enable-linger, or use --cron-with crontab",
            ) from error


def _marks(nightly: Nightly) -> tuple[str, str]:
    return f"# hidl validate {nightly.key}: begin", f"# hidl validate {nightly.key}: end"
