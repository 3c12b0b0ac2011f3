"""ReFrame itself: how it is started, and what it lists and reports."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidl_cli import paths, process
from hidl_cli.documents import read_json
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.schedulers.slurm import commands
from hidl_cli.site import hidl_cluster
from hidl_cli.site.schema import Site
from hidl_cli.validate.scales import NAMES

_LIST_SECONDS = 300.0
_PREFIX = re.compile(r"^(?P<indent> *)[-^] (?P<name>.+?) /(?P<hash>[0-9a-f]{6,})(?: @(?P<place>\S+))?\s*$")


@dataclass(frozen=True)
class Selection:
    """Which checks are run: by tags, all of which must fit, by names, any of which, and on which system."""

    settings: Path
    system: str
    tags: Sequence[str] = ()
    checks: Sequence[str] = ()

    def words(self) -> list[str]:
        """The options of ReFrame that say so."""
        found = [f"--config-file={self.settings}", f"--system={self.system}", "--nocolor"]
        found += [f"--checkpath={directory}" for directory in directories()]
        found += [f"--tag=^{re.escape(tag)}$" for tag in self.tags]
        if self.checks:
            found.append(f"--name={pattern(*self.checks)}")
        return found


def pattern(*checks: str) -> str:
    """The regular expression by which checks are known: a whole name, with parameters (``name%scale=1-node``) or not.

    ReFrame holds it against the name without its blanks. ``UsageError`` where it is none.
    """
    found = f"^(?:{'|'.join(checks)})(?:%|$)"
    try:
        re.compile(found)
    except re.error as error:
        raise UsageError(f"--check {' '.join(checks)} is not a valid regular expression: {error}") from error
    return found


@dataclass(frozen=True)
class Listed:
    """A case as ReFrame lists it: the check's name with its parameters, its hash, and ``system:partition+environ``."""

    name: str
    hash: str
    place: str | None

    @property
    def check(self) -> str:
        """The check's name alone."""
        return self.name.split()[0]

    @property
    def scale(self) -> str | None:
        """The name of its scale; None for a check without one."""
        found = re.search(r"%scale=(\S+)", self.name)
        return found[1] if found and found[1] in NAMES else None

    def fits(self, check: str) -> bool:
        """Whether ``--check`` means it."""
        return re.search(pattern(check), self.name.replace(" ", "")) is not None


def directories() -> list[Path]:
    """Where checks are looked for: those that ship with hidl, and the site's and the user's own."""
    own = [place / "reframe_checks" for place in (paths.system_config(), paths.user_config())]
    return [shipped_checks(), *(place for place in own if place.is_dir())]


def shipped_checks() -> Path:
    """The checks that ship with hidl."""
    return paths.shipped() / "reframe_checks"


def command(*arguments: str) -> list[str]:
    """ReFrame of this very Python, so that its checks find hidl; ``MissingPrecondition`` where it is not there."""
    if importlib.util.find_spec("reframe") is None:
        raise MissingPrecondition(
            f"ReFrame is not installed for {sys.executable}",
            hint=f"{sys.executable} -m pip install 'hidl[validate]', or: {sys.executable} -m pip install reframe-hpc",
        )
    beside = Path(sys.executable).with_name("reframe")
    start = [sys.executable, str(beside)] if beside.is_file() else [sys.executable, "-c", _MAIN]
    return [*start, *arguments]


_MAIN = "import sys; del sys.path[0]; from reframe.frontend.cli import main; sys.exit(main())"


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment as it is, without what would change ReFrame's answers; the library of checks can be imported."""
    kept = {name: value for name, value in hidl_cluster.environment().items() if not name.startswith("RFM_")}
    path = [str(Path(__file__).parents[2]), str(shipped_checks()), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONDONTWRITEBYTECODE": "1",
        **(more or {}),
    }


def cases(selection: Selection, directory: Path) -> list[Listed]:
    """The cases that would be run, fixtures and all; ``HidlError`` where ReFrame cannot list them."""
    return _list(selection, "--list=C", directory)


def everything(selection: Selection, directory: Path) -> list[Listed]:
    """The tests that fit by name and tag, whether this site has what they want or not."""
    return _list(selection, "--list=T", directory, "--skip-system-check", "--skip-prgenv-check")


def _list(selection: Selection, how: str, directory: Path, *more: str) -> list[Listed]:
    words = command(*selection.words(), f"--prefix={directory}", *more, how)
    completed = process.run(words, cwd=directory, env=environment(), timeout=_LIST_SECONDS, check=False)
    if completed.status != 0:
        raise HidlError(
            f"ReFrame cannot list its checks: {(completed.stdout + completed.stderr).strip()[-1500:]}",
            hint="hidl validate --dry-run prints the configuration and the command",
        )
    skipped = [line for line in completed.stdout.splitlines() if "skipping test" in line]
    if skipped:
        raise HidlError(
            "ReFrame cannot read all checks:\n" + "\n".join(skipped), hint="correct the check, or remove its file"
        )
    matches = [_PREFIX.match(line) for line in completed.stdout.splitlines()]
    return [Listed(m["name"], m["hash"], m["place"]) for m in matches if m]


def run(
    selection: Selection, directory: Path, *, log: Path, report: Path, more: Mapping[str, str] | None = None
) -> int:
    """Run the checks, with ``more`` variables set; ReFrame's exit status, which says no more than that some failed."""
    words = run_command(selection, directory, report)
    return process.run(words, cwd=directory, env=environment(more), log=log, check=False).status


def run_command(selection: Selection, directory: Path, report: Path) -> list[str]:
    """The command of ``run``."""
    return command(
        *selection.words(),
        f"--prefix={directory}",
        f"--perflogdir={directory / 'perflogs'}",
        f"--report-file={report}",
        "--keep-stage-files",
        "--run",
    )


def read_report(report: Path) -> list[Mapping[str, Any]]:
    """The cases in ReFrame's JSON report; ``HidlError`` where there is none."""
    try:
        document = read_json(report)
        return list(document["runs"][-1]["testcases"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise HidlError(
            f"ReFrame left no report that can be read: {error}", hint=f"its output is in {report.parent}"
        ) from error


def accounting_answers(site: Site) -> bool:
    """Whether sacct answers here, now; without it ReFrame's scheduler `slurm` fails after three tries."""
    if site.scheduler != "slurm":
        return False
    return commands.accounting_answers()
