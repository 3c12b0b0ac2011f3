"""What Spack prints while it installs: which packages are done, and why it failed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hidl_cli.stack.builds import diagnosis

_LINES = 8

# Spack's installer says ``==> py-mpi4py: Successfully installed py-mpi4py-4.1.0-<hash>``, and its new one, where no
# terminal looks on, ``<hash> py-mpi4py@4.1.0: finished``.
_DONE = (
    re.compile(r"==> (?P<name>[a-z0-9_.-]+): Successfully installed (?P<what>\S+)-[a-z0-9]{32}"),
    re.compile(r"[a-z0-9]{7,32} (?P<what>[a-z0-9_.-]+@\S+): finished"),
)
_FAILED = (
    re.compile(r"[a-z0-9]{7,32} (?P<name>[a-z0-9_.-]+)@\S+: failed"),
    re.compile(r"==> Error: (?:Failed to install|Installation of) (?P<name>[a-z0-9_.-]+)\b.*"),
    re.compile(r"==> (?P<name>[a-z0-9_.-]+): (?:Error|failed|Failed).*"),
)
_ERROR = re.compile(r"==> Error: (.+)")
_STAGE = re.compile(r"/spack-stage-(?P<name>[a-z0-9_.-]+?)-(\d|develop|main|master)[^/]*-[a-z0-9]{32}/")
_LOG = re.compile(r"\s*(?P<log>/\S+spack-build-(?:out|log|\S+)\.txt(?:\.gz)?|/\S+/spack-build-out\.txt|/\S+\.log)\s*")


@dataclass(frozen=True)
class Failure:
    """Why Spack failed: the package (if any), the relevant lines, and the package's own log where Spack names it."""

    package: str | None
    lines: tuple[str, ...]
    log: str | None


def done(line: str) -> str | None:
    """The package that this line says is installed now, as ``name-version``; None: it says no such thing."""
    found = next((found for pattern in _DONE if (found := pattern.match(line.strip()))), None)
    return found["what"].replace("@", "-") if found else None


def failure(lines: Iterable[str]) -> Failure:
    """What a log says of why Spack failed: what counts is what stands after the last command."""
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
    first = diagnosis.first_error(line for line in kept if not line.startswith("==> "))
    said: list[str] = [first] if package and first else []
    for number, line in enumerate(kept):
        if _ERROR.match(line):
            said += [each.strip() for each in kept[number : number + _LINES] if each.strip()]
            break
    return Failure(package, tuple(dict.fromkeys(said)), log)
