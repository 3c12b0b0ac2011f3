"""Run Spack without the user's own configuration, and explain its failures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import process
from hidl_cli.documents import read_json, sha256
from hidl_cli.errors import BuildFailed, HidlError, MissingPrecondition, ProcessFailed
from hidl_cli.site import hidl_cluster
from hidl_cli.site.probes import software
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.stack.builds.build import first_error
from hidl_cli.stack.order import InstallStep, log_command
from hidl_cli.stack.providers.spack.host import Instance, cache

if TYPE_CHECKING:
    from hidl_cli.stack.providers.spack.environment import Environment, SpackPart
    from hidl_cli.stack.providers.spack.lock import LockedSpec


_LINES = 8

# Spack's installer prints ``==> py-mpi4py: Successfully installed py-mpi4py-4.1.0-<hash>``. Its new installer prints
# ``<hash> py-mpi4py@4.1.0: finished`` if there is no terminal.
_DONE = (
    re.compile(r"==> (?P<name>[a-z0-9_.-]+): Successfully installed (?P<what>\S+)-[a-z0-9]{32}"),
    re.compile(r"[a-z0-9]{7,32} (?P<what>[a-z0-9_.-]+@\S+): finished"),
)
_FAILED = (
    re.compile(r"[a-z0-9]{7,32} (?P<name>[a-z0-9_.-]+)@\S+: failed"),
    re.compile(r"==> Error: (?:Failed to install|Installation of) (?P<name>[a-z0-9_.-]+)\b.*"),
    re.compile(r"==> (?P<name>[a-z0-9_.-]+): (?:Error|failed|Failed).*"),
)
_BEGUN = re.compile(
    r"==> Installing (?P<package>(?P<name>[a-z0-9_.-]+?)-(\d|develop|main|master)[^ ]*)-[a-z0-9]{32}\b"
    r"(?: \[(?P<number>\d+)/(?P<total>\d+)\])?"
)
_PATCH = re.compile(r"==> Patch \S+ failed")
_ERROR = re.compile(r"==> Error: (.+)")
_STAGE = re.compile(r"/spack-stage-(?P<name>[a-z0-9_.-]+?)-(\d|develop|main|master)[^/]*-[a-z0-9]{32}/")
_LOG = re.compile(r"\s*(?P<log>/\S+spack-build-(?:out|log|\S+)\.txt(?:\.gz)?|/\S+/spack-build-out\.txt|/\S+\.log)\s*")


@dataclass(frozen=True)
class Failure:
    """A Spack failure: the package (if any), the relevant lines, and the package's own log if Spack names it."""

    package: str | None
    lines: tuple[str, ...]
    log: str | None


def done(line: str) -> str | None:
    """Return the package (``name-version``) that a line of Spack output reports as installed, or None for others."""
    found = next((found for pattern in _DONE if (found := pattern.match(line.strip()))), None)
    return found["what"].replace("@", "-") if found else None


class Builds:
    """The progress of Spack as it builds the packages of one installation."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        self._total = 0
        self._installed = 0

    def read(self, line: str, now: float) -> str | None:
        """Return the progress reported in a line of Spack output: a package, its build time, and how many are left."""
        if begun := _BEGUN.match(line):
            self._begun[begun["package"]] = now
            self._total = int(begun["total"] or 0)
            self._installed = int(begun["number"] or 1) - 1
        package = done(line)
        if package is None:
            return None
        self._installed += 1
        facts = []
        if package in self._begun:
            minutes, seconds = divmod(round(now - self._begun.pop(package)), 60)
            facts.append(f"{minutes}:{seconds:02}")
        if self._total:
            facts.append(f"{max(0, self._total - self._installed)} left")
        return f"built {package}" + (f" ({', '.join(facts)})" if facts else "")


def failure_in(lines: Iterable[str]) -> Failure:
    """Return the failure that a Spack log shows after its last command."""
    kept: list[str] = []
    for line in lines:
        if line.startswith("$ "):
            kept = []
        else:
            kept.append(line.rstrip("\n"))
    matches = (pattern.match(line.strip()) for line in kept for pattern in _FAILED)
    package = next((found["name"] for found in matches if found and "name" in found.groupdict()), None)
    log = next((found["log"] for line in kept if (found := _LOG.fullmatch(line))), None)
    if package is None and log and (stage := _STAGE.search(log)):
        package = stage["name"]
    begun = [found["name"] for line in kept if (found := _BEGUN.match(line))]
    patches = [line for line in kept if _PATCH.match(line)]
    if package is None and patches and begun:  # Spack does not name the package in this case
        package = begun[-1]
    first = patches[0] if patches else first_error(line for line in kept if not line.startswith("==> "))
    shown: list[str] = [first] if package and first else []
    for number, line in enumerate(kept):
        if _ERROR.match(line):
            shown += [each.strip() for each in kept[number : number + _LINES] if each.strip()]
            break
    return Failure(package, tuple(dict.fromkeys(shown)), log)


# Ends Spack's whole process group if hidl dies. SIGTERM comes first because ``srun`` only ends the build job if it
# receives that signal.
_GUARD = (
    "sh",
    "-c",
    """trap 'trap "" TERM; kill -TERM 0; (sleep 5; kill -KILL 0) & wait "$child"; kill -KILL 0' TERM
"$@" & child=$!
wait "$child\"""",
    "hidl-build",
)

# Variables that would make Spack use another environment, or its Python load other modules.
_FOREIGN = ("SPACK_", "PYTHON", "VIRTUAL_ENV", "CONDA_")
_KEPT = ("SPACK_PYTHON", "SPACK_GNUPGHOME")
#: A proxy that does not exist, so that Spack cannot reach any other machine.
_NO_PROXY = "http://127.0.0.1:9"
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_NO_NETWORK = {**dict.fromkeys(_PROXIES, _NO_PROXY), "no_proxy": "", "NO_PROXY": ""}

_NETWORK = re.compile(
    r"URLError|urlopen error|Connection (refused|reset|timed out)|Could ?n.t resolve host|Temporary failure in name"
    r"|Network is unreachable|Failed to clone",
    re.IGNORECASE,
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_CHECKSUM = re.compile(r"ChecksumError|checksum failed|checksum did not match", re.IGNORECASE)
_NO_BINARY = "No binary found when cache-only was specified"
_UNKNOWN = re.compile(r"Package '([^']+)' not found|UnknownPackageError|unknown package", re.IGNORECASE)


def variables(python: Path | None) -> dict[str, str]:
    """Return the variables set for Spack in addition to the user's; ``python`` is the interpreter that runs it."""
    own = cache() / "user"
    added = {
        "SPACK_DISABLE_LOCAL_CONFIG": "1",
        "SPACK_USER_CONFIG_PATH": str(own / "config"),
        "SPACK_SYSTEM_CONFIG_PATH": str(own / "system"),
        "SPACK_USER_CACHE_PATH": str(own / "cache"),
        "SPACK_COLOR": "never",
        "PYTHONUNBUFFERED": "1",  # else Spack's lines come after the output of the packages they announce
        "SPACK_GNUPGHOME": os.environ.get("SPACK_GNUPGHOME") or str(own / "gpg"),
    }
    return added | ({"SPACK_PYTHON": str(python)} if python else {})


def step(
    instance: Instance,
    environment: Path,
    title: str,
    *words: str,
    python: Path | None,
    offline: bool = False,
    shell: Sequence[str] = (),
) -> InstallStep:
    """Return a Spack command that runs in the environment in a directory.

    Args:
        instance: The Spack instance.
        environment: The directory with ``spack.yaml``.
        title: The title of the step.
        words: The command and its arguments.
        python: The interpreter that runs Spack; None leaves the choice to Spack.
        offline: Whether Spack must not use the network.
        shell: Prefix of the command, such as ``srun``.
    """
    argv = (*shell, str(instance.program), "--color", "never", "-e", str(environment), *words)
    return InstallStep(title, argv, variables(python) | (_NO_NETWORK if offline else {}))


def run(command: InstallStep, log: Path, *, doing: str, failed: type[HidlError] = BuildFailed) -> str:
    """Run a Spack command and return its output, which is also appended to ``log``.

    Raises:
        MissingPrecondition: The network, a source or a package is missing.
        HidlError: Any other failure, raised as the class ``failed`` with the first error from Spack or a package.
    """
    log_command(log, command.argv)
    try:
        environment = (
            environment_of(hidl_cluster.environment()) | software.find_command(ThisHost()) | dict(command.variables)
        )
        completed = process.run((*_GUARD, *command.argv), cwd=Path("/"), env=environment, log=log)
    except ProcessFailed as failure:
        raise explained(failure, doing, log, failed) from failure
    return completed.stdout


def environment_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without the variables of any other Spack or Python."""
    return {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_FOREIGN)}


def explained(failure: ProcessFailed, doing: str, log: Path, failed: type[HidlError] = BuildFailed) -> HidlError:
    """Return the error that explains a Spack failure, with the first error that Spack or a package printed."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        found = failure_in(lines)
    shown = "\n".join(f"  {line}" for line in found.lines) or f"  {failure.output.strip()[-500:]}"
    where = f"nothing was published; the whole output is in {found.log or log}"
    if failure.status == 127:
        return MissingPrecondition(f"{doing}: Spack cannot be started\n{shown}", hint="set SPACK_PYTHON to a Python")
    text = "\n".join(found.lines) + failure.output
    causes: tuple[tuple[object, type[HidlError], str, str], ...] = (
        (_FULL.search(text), BuildFailed, "the disk is full", "free some space and try again"),
        (
            _CHECKSUM.search(text),
            BuildFailed,
            "the checksum of a source differs from its package's",
            "remove the source from its mirror if it is damaged, and try again",
        ),
        (
            not found.package and _NETWORK.search(text),
            MissingPrecondition,
            "no network, or a source cannot be reached",
            "add a mirror to the site file (`spack.mirrors`), or bring the sources: hidl stack fetch",
        ),
        (
            _NO_BINARY in text,
            MissingPrecondition,
            "a build cache lists a package that Spack does not accept",
            "add the key of who signed it to `keys` of the build cache, or set `signed: false`",
        ),
        (_UNKNOWN.search(text), MissingPrecondition, "unknown package", "update Spack or its package repository"),
    )
    for matched, error, cause, step in causes:
        if matched:
            return error(f"{doing}: {cause}\n{shown}", hint=f"{step}; {where}")
    what = f"{doing}: {found.package} could not be built" if found.package else doing
    return failed(f"{what}\n{shown}", hint=where)


# Installation without a network.


#: The schema of ``manifest.json`` in a directory created by ``hidl stack fetch``.
SCHEMA = "hidl.mirror/1"


def refuse_what_is_missing(part: SpackPart, stack: str, cached: frozenset[str] = frozenset()) -> None:
    """Raise ``MissingPrecondition`` with each package whose source is missing or damaged.

    Packages in ``cached`` come from build caches and need no source. Without a mirror, the fetch command reports the
    first source missing from Spack's cache before anything is built.
    """
    mirror = part.places.mirror
    lacking: list[str] = []
    if mirror is not None:
        brought, there = _brought(mirror), installed(part) | cached
        wanted = [node for node in part.lock.nodes if node.external is None and node.hash not in there]
        lacking = [reason for node in wanted if (reason := _why_missing(node, mirror, brought))]
    if part.places.builtin is None and not part.places.clone.is_dir():
        lacking.insert(0, "Spack's packages (a clone of spack-packages)")
    if lacking:
        raise MissingPrecondition(
            f"stack {stack} cannot be installed offline; missing: {', '.join(lacking)}",
            hint=f"on a machine with a network: hidl stack fetch {stack} --site {part.lock.site} --to DIR; "
            "then here: --offline --mirror DIR",
        )


def installed(part: SpackPart) -> frozenset[str]:
    """Return the hashes of the packages in Spack's store and its upstreams."""
    stores = (part.places.store, *upstreams(part.environment))
    return frozenset(key for store in stores for key in prefixes(store))


def upstreams(environment: Environment) -> list[Path]:
    """Return the install trees of other Spack instances that an environment uses."""
    return [Path(other["install_tree"]) for other in environment.document["spack"].get("upstreams", {}).values()]


def prefixes(store: Path) -> dict[str, Path]:
    """Return the prefixes of the packages in an install tree by hash, read from its index."""
    tree: Path | None = store
    while tree is not None:
        try:
            records = read_json(tree / ".spack-db" / "index.json")["database"]["installs"]
            return {key: Path(record.get("path") or tree) for key, record in records.items() if record.get("installed")}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # If paths are padded, the index is in the last of the directories with this name, which is truncated.
            nested = (other for other in tree.glob("_*") if _PADDING.startswith(other.name) and other.is_dir())
            tree = next(nested, None)
    return {}


_PADDING = "__spack_path_placeholder__"


def _brought(mirror: Path) -> Mapping[str, Any]:
    try:
        document = read_json(mirror / "manifest.json")
        if document["schema"] == SCHEMA:
            return dict(document["packages"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise MissingPrecondition(
        f"{mirror} was not made by `hidl stack fetch`", hint="--mirror DIR: the directory that --to named"
    )


def _why_missing(node: LockedSpec, mirror: Path, brought: Mapping[str, Any]) -> str | None:
    """Return a description of what is missing from a package's sources, or None if nothing is missing."""
    what = f"{node.name} {node.version}"
    if node.hash not in brought:
        return what
    for name, digest in brought[node.hash]["files"].items():
        file = mirror / "sources" / name
        if not file.is_file():
            return f"{what} ({name})"
        if sha256(file) != digest:
            return f"{what} ({name} is damaged: its SHA-256 differs from the manifest)"
    return None
