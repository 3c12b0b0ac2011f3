"""The nightly: one line in the user's crontab (or Slurm's scrontab), or a systemd timer, that runs ``hidl validate``.

It cannot pile up on itself: a validation that finds the last one still running says so and ends (``session.alone``).
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
from hidl_cli.launch.placement import clock
from hidl_cli.quoting import comment, sh, sh_line
from hidl_cli.site import hidl_cluster
from hidl_cli.validate.session import Asked

#: What a nightly needs of the user's environment: cron gives it next to nothing. No secret is among these.
_KEPT = re.compile(
    r"PATH|XDG_(CONFIG|STATE|DATA|CACHE)_HOME|PYTHONPATH"
    r"|MODULEPATH|LMOD_CMD|LMOD_PKG|MODULESHOME|MODULES_CMD|"
    + "|".join(variable for system in SYSTEMS.values() for variable in system.configuration)
)
_SECONDS = 30.0


@dataclass(frozen=True)
class Nightly:
    """A validation that is run every night.

    ``hour`` and ``minute`` are in the machine's local time. ``key`` distinguishes nightlies; ``selection`` are the
    options of ``hidl validate`` that it comes from.
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
    def of(cls, site: str, asked: Asked, at: str, further: Sequence[str] = ()) -> Nightly:
        """Return the nightly of a validation.

        Args:
            site: Name of the site.
            asked: Options of the validation.
            at: Time of day, such as ``02:00``.
            further: Options that change what is reported, such as ``--json``.

        Raises:
            UsageError: ``at`` is not a time of day, or a value has a line break, which no table of lines can hold.
        """
        match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", at)
        if match is None:
            raise UsageError(f"{at!r} is not a time of day", hint="for example --at 02:00")
        place = asked.place
        selection = (f"--site={place.site or site}", *(f"--{name}={value}" for name, value in asked.selection))
        words = [sys.executable, "-m", "hidl_cli", "validate", *selection]
        words += [f"--time={clock(place.time_limit)}"] if place.time_limit else []
        words += [f"--jobs={asked.jobs}"] if asked.jobs else []
        broken = next((word for word in words if len(word.splitlines()) > 1), None)
        if broken is not None:
            raise UsageError(f"invalid value {broken!r}: a nightly cannot have a line break", hint="leave it out")
        key = asked.key(site)
        variables = sorted(hidl_cluster.environment().items())
        environment = {name: value for name, value in variables if _KEPT.fullmatch(name)}
        log = paths.user_state() / "validate" / f"{key}.log"
        command = (*words, *further)
        return cls(site, key, selection, int(match[1]), int(match[2]), command, environment, log)

    def shell(self) -> str:
        """The command as a line for a shell, with its environment and its log."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return f"{sh_line(['env', *variables, *self.command])} >> {sh(str(self.log))} 2>&1"


class Table(Protocol):
    """Something that starts programs at a time of the day."""

    @property
    def name(self) -> str:
        """The program's name."""

    def text(self, nightly: Nightly) -> str:
        """What would be written."""

    def without(self, nightly: Nightly) -> str:
        """What would be left without the nightly."""

    def install(self, nightly: Nightly) -> None:
        """Write it; one of the same key that is there is replaced."""

    def uninstall(self, nightly: Nightly) -> bool:
        """Remove it and return whether it was there."""

    def keys(self) -> Sequence[str]:
        """Return the keys of all nightlies in the table."""


def choose(kind: str | None, *, hypothetical: bool = False) -> Table:
    """The table of that name, or the first that this machine has; ``hypothetical``: it need not be there if named.

    Raises ``UsageError`` for an unknown name, ``MissingPrecondition`` where its program is not there.
    """
    tables: dict[str, Table] = {"crontab": _Lines("crontab"), "scrontab": _Lines("scrontab"), "systemd": _Timer()}
    programs = {"crontab": "crontab", "scrontab": "scrontab", "systemd": "systemctl"}
    if kind is not None and kind not in tables:
        raise UsageError(f"{kind!r} not found: it cannot run a nightly", hint=f"--cron-with {', '.join(tables)}")
    for name in [kind] if kind else list(tables):
        if shutil.which(programs[name]) or (hypothetical and kind):
            return tables[name]
    raise MissingPrecondition(
        f"this machine has no {kind or 'crontab, scrontab or systemctl'}",
        hint="hidl validate --install-cron --dry-run --cron-with crontab prints a line for what runs nightlies here",
    )


@dataclass(frozen=True)
class _Lines:
    """``crontab`` or ``scrontab``: a file of lines, of which ours stand between two marks."""

    name: str

    def text(self, nightly: Nightly) -> str:
        """See ``Table.text``."""
        first, last = _marks(nightly)
        # In a crontab a % begins the command's standard input, unless it is escaped.
        line = f"{nightly.minute} {nightly.hour} * * * {nightly.shell().replace('%', chr(92) + '%')}"
        return "\n".join((first, line, last)) + "\n"

    def without(self, nightly: Nightly) -> str:
        """See ``Table.without``."""
        first, last = _marks(nightly)
        return re.sub(rf"(?ms)^{re.escape(first)}$.*?^{re.escape(last)}$\n?", "", self._read())

    def install(self, nightly: Nightly) -> None:
        """See ``Table.install``."""
        nightly.log.parent.mkdir(parents=True, exist_ok=True)
        rest = self.without(nightly)
        self._write(rest + ("" if not rest or rest.endswith("\n") else "\n") + self.text(nightly))

    def uninstall(self, nightly: Nightly) -> bool:
        """See ``Table.uninstall``."""
        rest = self.without(nightly)
        found = rest != self._read()
        if found:
            self._write(rest)
        return found

    def keys(self) -> Sequence[str]:
        return re.findall(r"(?m)^# hidl validate (.*): begin$", self._read())

    def _read(self) -> str:
        """The user's table; nothing where there is none yet, or no such program at all."""
        if not shutil.which(self.name):
            return ""
        completed = process.run([self.name, "-l"], timeout=_SECONDS, check=False)
        if completed.status == 0:
            return completed.stdout
        if re.search(r"no (s?crontab|entries)|not found", completed.stderr, re.IGNORECASE):
            return ""
        raise HidlError(f"{self.name} -l failed: {completed.stderr.strip()}", hint="nothing was changed")

    def _write(self, text: str) -> None:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".cron") as file:
            file.write(text)
            file.flush()
            try:
                process.run([self.name, file.name], timeout=_SECONDS)
            except ProcessFailed as error:
                raise MissingPrecondition(
                    f"{self.name} does not take the nightly: {error.output.strip()}",
                    hint="ask the site who may use it, or try --cron-with systemd",
                ) from error


class _Timer:
    """A systemd user timer. It runs while the user is logged in, or always after ``loginctl enable-linger``."""

    name = "systemd"

    def text(self, nightly: Nightly) -> str:
        """See ``Table.text``."""
        return "".join(f"# {path}\n{text}\n" for path, text in self._units(nightly).items())

    def without(self, nightly: Nightly) -> str:
        """See ``Table.without``."""
        return "".join(f"# {path} is taken away\n" for path in self._units(nightly) if path.exists())

    def install(self, nightly: Nightly) -> None:
        """See ``Table.install``."""
        nightly.log.parent.mkdir(parents=True, exist_ok=True)
        for path, text in self._units(nightly).items():
            write_text(path, text)
        self._systemctl("daemon-reload")
        self._systemctl("enable", "--now", f"{self._unit(nightly)}.timer")

    def uninstall(self, nightly: Nightly) -> bool:
        """See ``Table.uninstall``."""
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
        # systemd expands % and $ by itself, and knows the quotes of C rather than those of a shell.
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
                hint="is there a user session (loginctl enable-linger)? else --cron-with crontab",
            ) from error


def _marks(nightly: Nightly) -> tuple[str, str]:
    return f"# hidl validate {nightly.key}: begin", f"# hidl validate {nightly.key}: end"
