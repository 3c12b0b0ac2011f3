"""The programs that a cluster is made of, from the distribution's packages."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from hidl_cli import process
from hidl_cli.cluster.marks import plain_environment
from hidl_cli.errors import MissingPrecondition, ProcessFailed
from hidl_cli.quoting import sh_line

_PATH = plain_environment()["PATH"]
_APT = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=600"]

# What each of Debian's packages is needed for. MariaDB's server comes without the package that makes it a service.
PROGRAMS = {
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
    "slurm-client": ("sbatch", "scontrol", "sinfo", "srun"),
    "munge": ("munged",),
    "openssh-server": ("sshd",),
    "openssh-client": ("ssh", "ssh-keygen"),
    "iproute2": ("ip",),
    "util-linux": ("unshare", "nsenter"),
}
ACCOUNTING_PROGRAMS = {
    "slurmdbd": ("slurmdbd",),
    "mariadb-server-core": ("mariadbd", "mariadb-install-db"),
    "mariadb-client-core": ("mariadb",),
}
_SERVICES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "munge": "munge",
    "openssh-server": "ssh",
    "slurmdbd": "slurmdbd",
}


def missing(*, accounting: bool, path: str = _PATH) -> list[str]:
    """The packages that are not there, judged by their programs: where these come from does not matter."""
    wanted = PROGRAMS | (ACCOUNTING_PROGRAMS if accounting else {})
    absent = [
        package for package, programs in wanted.items() if not all(shutil.which(name, path=path) for name in programs)
    ]
    return absent if _has_pmix() else [*absent, "libpmix-dev"]


def not_root_of_linux() -> MissingPrecondition | None:
    """Why this user or this system can have nothing to do with clusters; None where nothing speaks against it."""
    if sys.platform != "linux":
        return MissingPrecondition(f"a cluster needs Linux's namespaces, and this is {sys.platform}")
    if os.geteuid() != 0:
        return MissingPrecondition(
            f"a cluster needs root to make the namespaces that are its nodes, and you are user {os.geteuid()}",
            hint="try again as root, with sudo",
        )
    return None


def obstacle(*, accounting: bool) -> MissingPrecondition | None:
    """Why no cluster can be had here; None where nothing speaks against it. What can be installed is no obstacle."""
    if (reason := not_root_of_linux()) is not None:
        return reason
    absent = missing(accounting=accounting)
    if absent and not shutil.which("apt-get", path=_PATH):
        return MissingPrecondition(
            f"a cluster needs the programs of Debian's packages {', '.join(absent)}, and there is no apt-get",
            hint="install Slurm, munge, OpenSSH, iproute2 (and for accounting slurmdbd and MariaDB), and try again",
        )
    return _namespaces_refused() if shutil.which("unshare", path=_PATH) else None


def _namespaces_refused() -> MissingPrecondition | None:
    tried = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    completed = process.run(tried, env=plain_environment(), timeout=20, check=False)
    if completed.status == 0:
        return None
    return MissingPrecondition(
        f"the kernel lets this root make no namespaces: {completed.stderr.strip()}",
        hint="in a container: start it with --privileged",
    )


def install(*, accounting: bool, log: Path, say: Callable[[str], None]) -> None:
    """Install what is missing; ``MissingPrecondition`` with the command to run by hand where that fails."""
    absent = missing(accounting=accounting)
    if not absent:
        return
    say(f"installing {', '.join(absent)} with apt-get (its output is in {log})")
    # RUNLEVEL=1: the packages must not start their services, which would serve the machine and not the cluster.
    environment = plain_environment() | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = [*_APT, "install", "--no-install-recommends", *absent]
    try:
        # These two may fail, as where dpkg is at work or one archive of many does not answer: what counts is the third.
        process.run(["dpkg", "--configure", "-a"], env=environment, timeout=600, log=log, check=False)
        process.run([*_APT, "update"], env=environment, timeout=600, log=log, check=False)
        process.run(command, env=environment, timeout=1800, log=log)
    except ProcessFailed as error:
        raise MissingPrecondition(
            f"apt-get could not install what a cluster needs: {_last_line(error.output)}",
            hint=f"see {log}, then: {sh_line(['apt-get', 'install', '--no-install-recommends', *absent])}",
        ) from error
    _disable_services([_SERVICES[package] for package in absent if package in _SERVICES])
    if still := missing(accounting=accounting):
        raise MissingPrecondition(f"{', '.join(still)}: installed, but the programs are not there", hint=f"see {log}")


def _disable_services(services: list[str]) -> None:
    """Where systemd runs, packages enable their services however they are installed: undo that for ours."""
    if services and Path("/run/systemd/system").is_dir():
        process.run(["systemctl", "disable", "--now", *services], timeout=120, check=False)


def _has_pmix() -> bool:
    """Whether Slurm's PMIx plugin finds its library: it opens libpmix.so by its full path, without a version."""
    return any(next(Path("/").glob(f"usr/lib*/{place}libpmix.so"), None) for place in ("", "*/", "*/pmix2/lib/"))


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("E:")), lines[-1] if lines else "no output")
