"""Distribution packages with the programs of a cluster."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from hidl_cli import process
from hidl_cli.errors import MissingPrecondition, ProcessFailed
from hidl_cli.quoting import sh_line
from hidl_twin.marks import plain_environment

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
    "util-linux": ("unshare",),
}
ACCOUNTING_PROGRAMS = {
    "slurmdbd": ("slurmdbd",),
    "mariadb-server-core": ("mariadbd", "mariadb-install-db"),
    "mariadb-client-core": ("mariadb",),
}
TWIN_PROGRAMS = {"lmod": ("/usr/share/lmod/lmod/libexec/lmod",)}
#: A compiler, for what makes nodes claim processors.
CLAIM_PROGRAMS = {
    "gcc": ("cc",),
    "libc6-dev": ("/usr/include/stdlib.h",),
}
_SERVICES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "munge": "munge",
    "openssh-server": "ssh",
    "slurmdbd": "slurmdbd",
}


def missing(*, accounting: bool, twin: bool = False, claims: bool = False, path: str = _PATH) -> list[str]:
    """Missing packages, judged by their programs: these may come from elsewhere.

    ``claims``: nodes of a plain cluster claim processors, as those of a ``twin`` do.
    """
    wanted = dict(PROGRAMS)
    for programs, needed in (
        (ACCOUNTING_PROGRAMS, accounting),
        (TWIN_PROGRAMS, twin),
        (CLAIM_PROGRAMS, twin or claims),
    ):
        wanted |= programs if needed else {}
    absent = [
        package
        for package, programs in wanted.items()
        if not all(Path(name).exists() if "/" in name else shutil.which(name, path=path) for name in programs)
    ]
    return absent if _has_pmix() else [*absent, "libpmix-dev"]


def not_root_of_linux() -> MissingPrecondition | None:
    """Why this user or system cannot run clusters; None if it can."""
    if sys.platform != "linux":
        return MissingPrecondition(f"a cluster requires Linux namespaces; this is {sys.platform}")
    if os.geteuid() != 0:
        return MissingPrecondition(
            f"a cluster requires root, to create its nodes' namespaces; you are user {os.geteuid()}",
            hint="run it as root, with sudo",
        )
    return None


def obstacle(*, accounting: bool, twin: bool = False, claims: bool = False) -> MissingPrecondition | None:
    """Why no cluster can run here; None if one can. Packages that can be installed are no obstacle."""
    if (reason := not_root_of_linux()) is not None:
        return reason
    absent = missing(accounting=accounting, twin=twin, claims=claims)
    if absent and not shutil.which("apt-get", path=_PATH):
        return MissingPrecondition(
            f"a cluster requires Debian's packages {', '.join(absent)}; apt-get not found",
            hint="install Slurm, munge, OpenSSH, iproute2 (for accounting also slurmdbd, MariaDB); run it again",
        )
    return _namespaces_refused() if shutil.which("unshare", path=_PATH) else None


def _namespaces_refused() -> MissingPrecondition | None:
    tried = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    completed = process.run(tried, env=plain_environment(), timeout=20, check=False)
    if completed.status == 0:
        return None
    return MissingPrecondition(
        f"cannot create namespaces: {completed.stderr.strip()}",
        hint="in a container, start it with --privileged",
    )


def install(
    *, accounting: bool, twin: bool = False, claims: bool = False, log: Path, say: Callable[[str], None]
) -> None:
    """Install missing packages; ``MissingPrecondition`` with the command to run by hand if that fails."""
    absent = missing(accounting=accounting, twin=twin, claims=claims)
    if not absent:
        return
    say(f"installing {', '.join(absent)} with apt-get (output: {log})")
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
            f"apt-get failed to install the cluster's packages: {_last_line(error.output)}",
            hint=f"see {log}, then: {sh_line(['apt-get', 'install', '--no-install-recommends', *absent])}",
        ) from error
    _disable_services([_SERVICES[package] for package in absent if package in _SERVICES])
    if still := missing(accounting=accounting, twin=twin, claims=claims):
        raise MissingPrecondition(
            f"{', '.join(still)}: installed, but their programs were not found", hint=f"see {log}"
        )


def _disable_services(services: list[str]) -> None:
    """Disable the services that our packages enable where systemd runs."""
    if services and Path("/run/systemd/system").is_dir():
        process.run(["systemctl", "disable", "--now", *services], timeout=120, check=False)


def _has_pmix() -> bool:
    """Whether Slurm's PMIx plugin finds libpmix.so: it opens the full path, without a version."""
    return any(next(Path("/").glob(f"usr/lib*/{place}libpmix.so"), None) for place in ("", "*/", "*/pmix2/lib/"))


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("E:")), lines[-1] if lines else "no output")
