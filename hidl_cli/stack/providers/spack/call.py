"""Run Spack without the user's own configuration, and explain its failures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import paths, process
from hidl_cli.documents import read_json, sha256
from hidl_cli.errors import BuildFailed, HidlError, MissingPrecondition, ProcessFailed
from hidl_cli.mpi import TRAITS
from hidl_cli.quoting import sh_line
from hidl_cli.redaction import shown_end
from hidl_cli.site import hidl_cluster
from hidl_cli.site.probes import software
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.stack.builds.build import first_error
from hidl_cli.stack.order import InstallStep, log_command
from hidl_cli.stack.providers.spack.host import PLACES_VARIABLE, Instance, cache, index_of

if TYPE_CHECKING:
    from hidl_cli.batch_systems import BuildJob
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
_EXPECTED = re.compile(r"# expected: (?P<package>\S+) takes (?P<seconds>\d+) s")
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
    """Return the package (``name-version``) that a line of Spack's output reports as installed, if any."""
    found = next((found for pattern in _DONE if (found := pattern.match(line.strip()))), None)
    return found["what"].replace("@", "-") if found else None


class Builds:
    """The progress of Spack as it builds the packages of one installation."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        self._expected: dict[str, int] = {}
        self._total = 0
        self._installed = 0

    def read(self, line: str, now: float) -> str | None:
        """Return the progress reported in a line of the log: a package, its build time, and what is left.

        The remaining time is the sum of the times that ``log_expected_times`` wrote for the remaining packages. It is a
        lower bound if some of them were never built before.
        """
        if expected := _EXPECTED.match(line):
            self._expected[expected["package"]] = int(expected["seconds"])
        if begun := _BEGUN.match(line):
            self._begun[begun["package"]] = now
            self._total = int(begun["total"] or 0)
            self._installed = int(begun["number"] or 1) - 1
        package = done(line)
        if package is None:
            return None
        self._installed += 1
        self._expected.pop(package, None)
        facts = []
        if package in self._begun:
            facts.append(_minutes(now - self._begun.pop(package)))
        if self._total:
            left = max(0, self._total - self._installed)
            facts.append(f"{left} left")
            if left and self._expected:
                bound = "at least" if left > len(self._expected) else "about"
                facts.append(f"{bound} {_minutes(sum(self._expected.values()))} more")
        return f"built {package}" + (f" ({', '.join(facts)})" if facts else "")


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def log_expected_times(part: SpackPart, building: frozenset[str], log: Path) -> None:
    """Append the expected build time of each package to the log, if any version of the package is in the store."""
    times: dict[str, float] = {}
    for tree in (part.environment.tree, *upstreams(part.environment)):
        for prefix in prefixes(tree).values():
            with suppress(OSError, ValueError, KeyError, TypeError):  # externals, and packages from build caches
                record = read_json(prefix / ".spack" / "install_times.json")
                if not record["cache"]:
                    times[record["name"]] = float(record["total"])
    with log.open("a", encoding="utf-8") as file:
        for node in part.lock.nodes:
            if node.hash in building and node.name in times:
                file.write(f"# expected: {node.name}-{node.version} takes {times[node.name]:.0f} s\n")


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


# Ends Spack's whole process group if hidl dies or is interrupted, and cancels the build job ($1) if there is one. A
# client such as ``srun`` that has not ended after the grace period is killed, but its job would keep running. A process
# in a separate session therefore cancels the job: immediately, and again when the client is dead, because the client
# may have submitted the job in between.
_GUARD = """\
cancel=$1
shift
cancel_job() { [ -z "$cancel" ] || setsid -f sh -c "$cancel; sleep 8; $cancel" </dev/null >/dev/null 2>&1; }
trap 'trap "" TERM; cancel_job; kill -TERM 0; (sleep 5; kill -KILL 0) & wait "$child"; kill -KILL 0' TERM
"$@" & child=$!
wait "$child"
status=$?
[ "$status" -le 128 ] || cancel_job
exit "$status"
"""

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
        "PYTHONUNBUFFERED": "1",  # otherwise, Spack's lines would follow the output of the packages that they announce
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
    job: BuildJob | None = None,
) -> InstallStep:
    """Return a Spack command that uses the environment in a directory.

    Args:
        instance: The Spack instance.
        environment: The directory with ``spack.yaml``.
        title: The title of the step.
        words: The command and its arguments.
        python: The interpreter that runs Spack; None leaves the choice to Spack.
        offline: Whether Spack must not use the network.
        job: The job that the command runs in; None to run it here.
    """
    argv = (str(instance.program), "--color", "never", "-e", str(environment), *words)
    added = variables(python) | (_NO_NETWORK if offline else {})
    return (
        InstallStep(title, (*job.command, *argv), added, cancel=job.cancel) if job else InstallStep(title, argv, added)
    )


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
        guard = ("sh", "-c", _GUARD, "hidl-build", sh_line(command.cancel))
        completed = process.run((*guard, *command.argv), cwd=Path("/"), env=environment, log=log)
    except ProcessFailed as failure:
        raise explained(failure, doing, log, failed) from failure
    return completed.stdout


def environment_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without the variables of any other Spack or Python."""
    return {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_FOREIGN)}


def explained(failure: ProcessFailed, doing: str, log: Path, failed: type[HidlError] = BuildFailed) -> HidlError:
    """Return an error that explains a Spack failure by quoting the first error that Spack or a package printed."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        found = failure_in(lines)
    shown = "\n".join(f"  {line}" for line in found.lines) or f"  {shown_end(failure.output, 500).strip()}"
    where = f"nothing was published; the full output is in {found.log or log}"
    if failure.status == 127:
        return MissingPrecondition(
            f"{doing}: Spack cannot be started\n{shown}", hint="set SPACK_PYTHON to a Python interpreter"
        )
    text = "\n".join(found.lines) + failure.output
    causes: tuple[tuple[object, type[HidlError], str, str], ...] = (
        (_FULL.search(text), BuildFailed, "the disk is full", "free some space and try again"),
        (
            _CHECKSUM.search(text),
            BuildFailed,
            "the checksum of a source archive differs from the one in its package",
            "if the archive in the mirror is damaged, remove it and try again",
        ),
        (
            not found.package and _NETWORK.search(text),
            MissingPrecondition,
            "there is no network, or a source cannot be reached",
            "add a mirror to the site file (`spack.mirrors`), or copy the sources here with hidl stack fetch",
        ),
        (
            _NO_BINARY in text,
            MissingPrecondition,
            "a build cache lists a package that Spack does not accept",
            "add the signer's key to `keys` of the build cache, or set `signed: false`",
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
    """Raise ``MissingPrecondition`` with a list of all packages whose sources are missing or damaged, if any.

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
            hint=f"on a machine with network access, run: hidl stack fetch {stack} --site {part.lock.site} --to DIR; "
            "then, on this machine, use --offline --mirror DIR",
        )


def installed(part: SpackPart) -> frozenset[str]:
    """Return the hashes of the packages in Spack's store and its upstreams."""
    trees = (part.environment.tree, *upstreams(part.environment))
    return frozenset(key for tree in trees for key in prefixes(tree))


def upstreams(environment: Environment) -> list[Path]:
    """Return the install trees of other Spack instances that an environment uses."""
    return [Path(other["install_tree"]) for other in environment.document["spack"].get("upstreams", {}).values()]


def prefixes(tree: Path) -> dict[str, Path]:
    """Return the prefixes of the packages in an install tree by hash, read from its index."""
    try:
        records = read_json(index_of(tree))["database"]["installs"]
        return {key: Path(record.get("path") or tree) for key, record in records.items() if record.get("installed")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _brought(mirror: Path) -> Mapping[str, Any]:
    try:
        document = read_json(mirror / "manifest.json")
        if document["schema"] == SCHEMA:
            return dict(document["packages"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise MissingPrecondition(
        f"{mirror} was not created by `hidl stack fetch`", hint="pass the --to directory of `hidl stack fetch`"
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


_FOUND_SPEC = re.compile(r"(?P<name>[a-z0-9_-]+)@=?(?P<version>[A-Za-z0-9._-]+)\s*(?P<variants>.*)")
_DRAFT_HEAD = """\
# A draft from `spack external find`, which recognizes programs by name: it confuses MPI libraries, and finds several
# packages in one prefix. Keep what is right, move MPI libraries to `mpi` and compilers to `compilers`, and compare the
# file with the machine: hidl site check --on-host NAME
"""


def draft_externals(instance: Instance) -> str:
    """Return a draft of a site's ``externals``, based on ``spack external find``, for users to correct.

    MPI libraries and compilers are in comments only.
    """
    import yaml

    with paths.temporary_directory("spack") as directory:
        place = Path(directory)
        repositories = os.environ.get(PLACES_VARIABLE)
        if repositories:
            builtin = Path(repositories, "repos", "spack_repo", "builtin")
            (place / "repos.yaml").write_text(f"repos: {{builtin: {builtin}}}\n", encoding="utf-8")
        log = place / "log"
        log.touch()
        argv = (str(instance.program), "--color", "never", "-C", str(place), "external", "find", "--scope", "user")
        settings = variables(None) | {"SPACK_USER_CONFIG_PATH": str(place)}
        del settings["SPACK_DISABLE_LOCAL_CONFIG"]
        run(InstallStep("look for software", argv, settings), log, doing="Spack could not search for software")
        file = place / "packages.yaml"
        packages: dict[str, Any] = (
            yaml.safe_load(file.read_text(encoding="utf-8"))["packages"] if file.is_file() else {}
        )
    return _DRAFT_HEAD + _draft_text(packages)


def _draft_text(packages: dict[str, Any]) -> str:
    import yaml

    kept, remarks = {}, []
    mpi_packages = {traits.spack for traits in TRAITS.values()}
    for name, entry in sorted(packages.items()):
        for external in entry.get("externals", []):
            found = _FOUND_SPEC.match(external["spec"])
            if name in mpi_packages or "compilers" in (external.get("extra_attributes") or {}):
                remarks.append(f"# left out: {external['spec']} in {external.get('prefix')}")
            elif found and name not in kept:
                kept[name] = {
                    "version": found["version"],
                    "prefix": external.get("prefix"),
                    **({"variants": found["variants"]} if found["variants"] else {}),
                }
            else:
                remarks.append(f"# also found: {external['spec']} in {external.get('prefix')}")
    body = yaml.safe_dump({"externals": kept}, sort_keys=True)
    return body + "".join(f"{remark}\n" for remark in remarks)
