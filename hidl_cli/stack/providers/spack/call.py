"""Starting Spack: it sees nothing of the user's own configuration, and what it says is understood where it fails."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hidl_cli import process
from hidl_cli.errors import BuildFailed, HidlError, MissingPrecondition, ProcessFailed
from hidl_cli.site.probes import modules
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.stack.builds.building import GUARD
from hidl_cli.stack.providers.spack import output
from hidl_cli.stack.providers.spack.instance import Instance
from hidl_cli.stack.providers.spack.places import cache
from hidl_cli.stack.steps import InstallStep, log_command

# What would show Spack another environment, or its Python other modules.
_FOREIGN = ("SPACK_", "PYTHON", "VIRTUAL_ENV", "CONDA_")
_KEPT = ("SPACK_PYTHON", "SPACK_GNUPGHOME")
#: Nothing is asked for beyond this machine: every URL goes to a port that nobody serves.
_NOBODY = "http://127.0.0.1:9"
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_NO_NETWORK = {**dict.fromkeys(_PROXIES, _NOBODY), "no_proxy": "", "NO_PROXY": ""}

_NETWORK = re.compile(
    r"URLError|urlopen error|Connection (refused|reset|timed out)|Could ?n.t resolve host|Temporary failure in name"
    r"|Network is unreachable|Failed to clone",
    re.IGNORECASE,
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_CHECKSUM = re.compile(r"ChecksumError|checksum failed|checksum did not match", re.IGNORECASE)
_UNKNOWN = re.compile(r"Package '([^']+)' not found|UnknownPackageError|unknown package", re.IGNORECASE)


def variables(python: Path | None) -> dict[str, str]:
    """What Spack gets in addition to the user's environment. ``python``: the interpreter that it is to run with."""
    own = cache() / "user"
    told = {
        "SPACK_DISABLE_LOCAL_CONFIG": "1",
        "SPACK_USER_CONFIG_PATH": str(own / "config"),
        "SPACK_SYSTEM_CONFIG_PATH": str(own / "system"),
        "SPACK_USER_CACHE_PATH": str(own / "cache"),
        "SPACK_COLOR": "never",
        "SPACK_GNUPGHOME": os.environ.get("SPACK_GNUPGHOME") or str(own / "gpg"),
    }
    return told | ({"SPACK_PYTHON": str(python)} if python else {})


def step(
    instance: Instance,
    environment: Path,
    title: str,
    *words: str,
    python: Path | None,
    offline: bool = False,
    shell: Sequence[str] = (),
) -> InstallStep:
    """A command of Spack's in the environment that lies in the directory ``environment``."""
    argv = (*shell, str(instance.program), "--color", "never", "-e", str(environment), *words)
    return InstallStep(title, argv, variables(python) | (_NO_NETWORK if offline else {}))


def run(command: InstallStep, log: Path, *, doing: str, failed: type[HidlError] = BuildFailed) -> str:
    """Run a command of Spack's and return its output, which ``log`` gets too.

    Raises:
        MissingPrecondition: The network, a source or a package is missing.
        HidlError: Any other failure, of the class ``failed``, with the first real error of Spack or of a package.
    """
    log_command(log, command.argv)
    try:
        environment = environment_of(os.environ) | modules.find_command(ThisHost()) | dict(command.variables)
        completed = process.run((*GUARD, *command.argv), cwd=Path("/"), env=environment, log=log)
    except ProcessFailed as failure:
        raise explained(failure, doing, log, failed) from failure
    return completed.stdout


def environment_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, without what is about another Spack or Python."""
    return {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_FOREIGN)}


def explained(failure: ProcessFailed, doing: str, log: Path, failed: type[HidlError] = BuildFailed) -> HidlError:
    """Return Spack's failure in hidl's words, with the first real error."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        found = output.failure(lines)
    said = "\n".join(f"  {line}" for line in found.lines) or f"  {failure.output.strip()[-500:]}"
    where = f"nothing was published; the whole output is in {found.log or log}"
    if failure.status == 127:
        return MissingPrecondition(f"{doing}: Spack cannot be started\n{said}", hint="is its Python there?")
    text = "\n".join(found.lines) + failure.output
    if _FULL.search(text):
        return BuildFailed(f"{doing}: the disk is full\n{said}", hint=f"make room and run it again; {where}")
    if _CHECKSUM.search(text):
        return BuildFailed(
            f"{doing}: a source is not what its package says: its checksum is another\n{said}",
            hint=f"it was changed or is damaged: remove it from its mirror, and run it again; {where}",
        )
    if _NETWORK.search(text) and not found.package:
        return MissingPrecondition(
            f"{doing}: no network, or a source cannot be reached\n{said}",
            hint=f"name a mirror in the site's file (`spack.mirrors`), or bring one: hidl stack fetch; {where}",
        )
    if _UNKNOWN.search(text):
        return MissingPrecondition(
            f"{doing}: Spack does not know a package\n{said}",
            hint=f"this Spack, or its package repository, may be too old; {where}",
        )
    what = f"{doing}: {found.package} could not be built" if found.package else doing
    return failed(f"{what}\n{said}", hint=where)
