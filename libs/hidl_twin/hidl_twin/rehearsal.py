"""Rehearse a site: type its users' lines on a twin of it, each in a process of its own.

The twin's users have their own directories, so this machine's installations and runs are not touched; their
configuration is a copy of this user's.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from hidl_cli import paths, process
from hidl_cli.batch_systems import SSH
from hidl_cli.documents import write_text
from hidl_cli.errors import ExitCode, HidlError, ProcessFailed
from hidl_cli.launch.hostlist import fold
from hidl_cli.plan.devices import reason_not_runnable
from hidl_cli.quoting import sh_line
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import hold_lock
from hidl_cli.stack.verify import verification_place
from hidl_twin.cluster import Cluster, shared
from hidl_twin.twin.users import Users

#: The project that pays for a twin's jobs: any name will do there.
ACCOUNT = "rehearsal"
#: How long each line may take: an installation may compile, and a validation waits for several jobs.
_SECONDS = {"install": 3600.0, "run": 900.0, "validate": 1200.0}
_TWIN = "twin"
_LONGEST_OUTCOME = 200


@dataclass(frozen=True)
class Script:
    """What to rehearse. ``nodes``: of each kind of node; ``tag`` and ``checks`` select what ``hidl validate`` runs.

    ``settings``: parameters of the workloads, as for ``hidl run --set``.
    """

    stacks: Sequence[str] = ("mpi",)
    workloads: Sequence[str] = ("mpi-sanity",)
    settings: Sequence[str] = ()
    nodes: int = 4
    tag: str = "smoke"
    checks: Sequence[str] = ()


@dataclass(frozen=True)
class Stage:
    """One line and its result. ``outcome``: its last line, or its first error."""

    title: str
    seconds: float
    exit_code: int
    outcome: str
    log: Path | None = None

    @property
    def verdict(self) -> str:
        """``pass`` or ``fail``."""
        return "pass" if self.exit_code == ExitCode.OK else "fail"


@dataclass
class Rehearsal:
    """All lines of a site, up to the first that fails."""

    site: str
    directory: Path
    began: datetime
    steps: list[Stage] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """That of the step that failed, else 0."""
        return next((step.exit_code for step in self.steps if step.exit_code), 0)

    @property
    def seconds(self) -> float:
        """The duration."""
        return sum(step.seconds for step in self.steps)

    @property
    def outcome(self) -> str:
        """The first error, or ``pass``."""
        return next((f"{step.title}: {step.outcome}" for step in self.steps if step.exit_code), "pass")


def directory_of(site: str) -> Path:
    """Return the directory of a site's last rehearsal: its twin, its users' directories, its logs."""
    return paths.user_state() / "rehearsals" / site


def rehearse(
    name: str, script: Script, say: Callable[[str], None], told: Callable[[Stage], None], *, keep: bool = False
) -> Rehearsal:
    """Bring up a twin of site ``name``, type the lines, take it down; ``told`` gets each stage as it ends.

    ``keep``: leave the twin up with what was installed and run on it. Raises what bringing up a twin raises for a site
    without one.
    """
    directory = directory_of(name)
    with hold_lock(directory.with_name(f".{name}") / "lock", say):
        return _rehearse(load_site(name), directory, script, say, told, keep=keep)


def _rehearse(
    site: Site,
    directory: Path,
    script: Script,
    say: Callable[[str], None],
    told: Callable[[Stage], None],
    *,
    keep: bool,
) -> Rehearsal:
    name = site.name
    _remove_the_last(directory)
    users = Users(directory)
    users.make()
    twin = Cluster(_place(directory), say, like=name)
    found = Rehearsal(name, directory, datetime.now(timezone.utc))

    def add(step: Stage) -> bool:
        found.steps.append(step)
        told(step)
        return step.exit_code == ExitCode.OK

    nodes = max(script.nodes, _fewest_nodes(site))
    with _down_at_the_end(twin, keep=keep):
        if add(_brought_up(twin, name, nodes, directory)):
            _name_hosts(site, twin, users)
            for number, words in enumerate(_lines(site, script), start=1):
                log = directory / "logs" / f"{number}-{words[0]}.log"
                if not add(_typed(twin, words, users.environment(), log)):
                    break
    if not keep:
        users.remove_installations()
    return found


def _place(directory: Path) -> Path:
    """Create a directory for the twin whose path is short enough for sockets, linked from the rehearsal's."""
    place = Path(tempfile.mkdtemp(prefix="hidl-twin-"))
    place.chmod(0o755)
    (directory / _TWIN).symlink_to(place)
    return place


def _remove_the_last(directory: Path) -> None:
    """Take down what the site's last rehearsal left, even if it was killed."""
    link = directory / _TWIN
    if link.is_symlink():
        _remove_twin(Cluster(link.readlink()))
    if directory.is_dir():
        shutil.rmtree(directory)


def _remove_twin(twin: Cluster) -> None:
    """Take the twin down and remove it with its directory, which ``_place`` created."""
    twin.down(purge=True)
    with suppress(OSError):  # missing, or not empty
        twin.layout.directory.rmdir()


def _brought_up(twin: Cluster, name: str, nodes: int, directory: Path) -> Stage:
    title, began = f"hidl cluster up --like {name} --nodes {nodes}", time.monotonic()
    try:
        twin.up(like=name, nodes=nodes, shares=shared([directory]))
    except HidlError as error:
        return Stage(title, time.monotonic() - began, int(error.exit_code), error.message)
    hosts = len(twin.dress.hosts)
    return Stage(title, time.monotonic() - began, 0, f"{hosts} nodes are ready")


def _name_hosts(site: Site, twin: Cluster, users: Users) -> None:
    """Name the twin's nodes in a user's file that extends the site's, if that has no queue and names none."""
    if site.scheduler != SSH or site.node_type().hosts is not None:
        return
    by_kind: dict[str, list[str]] = {}
    for host in twin.dress.hosts:
        by_kind.setdefault(host.kind, []).append(host.name)
    document = {
        "name": site.name,
        "title": f"{site.title}, with the twin's hosts",
        "extends": site.name,
        "node_types": {kind: {"hosts": fold(names)} for kind, names in by_kind.items()},
    }
    file = users.directory / "config" / "hidl" / "sites" / f"{site.name}.yaml"
    write_text(file, json.dumps(document))


def _lines(site: Site, script: Script) -> Iterator[list[str]]:
    """Yield the three lines, as words after ``hidl``."""
    at = ["--site", site.name]
    has_accounts = site.policies.account != "never" and site.scheduler != SSH
    paid = [*at, *(["--account", ACCOUNT] if has_accounts else [])]
    yield ["install", *script.stacks, *(paid if verification_place(site) == "job" else at)]
    for workload in script.workloads:
        settings = [word for setting in script.settings for word in ("--set", setting)]
        yield ["run", workload, *paid, "--nodes", str(_run_nodes(site)), *settings]
    checks = [word for check in script.checks for word in ("--check", check)]
    yield ["validate", *paid, "--tag", script.tag, *checks]


def _fewest_nodes(site: Site) -> int:
    partition = site.partition()
    return partition.min_nodes if partition else 1


def _run_nodes(site: Site) -> int:
    """Return two nodes, or the closest that the default partition allows."""
    partition = site.partition()
    most = partition.max_nodes if partition else None
    return max(_fewest_nodes(site), min(2, most or 2))


def _typed(twin: Cluster, words: Sequence[str], environment: dict[str, str], log: Path) -> Stage:
    """Type a line on the twin's login host."""
    title, began = sh_line(["hidl", *words]), time.monotonic()
    argv, surrounded = twin.at_login([sys.executable, "-m", "hidl_cli", *words], environment)
    status, limit = 0, _SECONDS[words[0]]
    try:
        process.run(argv, env=surrounded, timeout=limit, log=log)
    except ProcessFailed as failure:
        status = failure.status if failure.status > 0 else int(ExitCode.UNEXPECTED)
    seconds, outcome = time.monotonic() - began, _outcome(status, log)
    if status and seconds >= limit:
        outcome = f"did not end within {limit:g} s; the last line: {outcome}"
    return Stage(title, seconds, status, outcome, log)


def _outcome(status: int, log: Path) -> str:
    """Return the last line of the output, or the first with an error."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.partition("error:")[2].strip() for line in lines if line.startswith("error:")]
    errors += [line for line in lines if re.search(r"\brun \S+ (ended|was|is|has|ran)\b", line)]
    told = errors[0] if status and errors else lines[-1] if lines else "no output"
    return told if len(told) <= _LONGEST_OUTCOME else f"{told[:_LONGEST_OUTCOME]}..."


@contextmanager
def _down_at_the_end(twin: Cluster, *, keep: bool) -> Iterator[None]:
    try:
        yield
    finally:
        if not keep:
            _remove_twin(twin)


def can_be_rehearsed(site: Site) -> str | None:
    """Return why a site cannot be rehearsed; None if it can."""
    reason = None if site.scheduler == SSH else reason_not_runnable(site)  # a twin names hosts
    if reason is None and site.scheduler == "local":
        return "this machine itself"
    return reason
