"""MPI run-time variables in the user's shell, and the files and adapters that they refer to.

Variables that hidl sets are checked when a run is planned.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.doctor.examine import PlannedJob, plan_job
from hidl_cli.mpi import Library
from hidl_cli.quoting import sh
from hidl_cli.site.probes.host import Host
from hidl_cli.tuning import catalogue
from hidl_cli.tuning.catalogue import is_control
from hidl_cli.tuning.judge import LD_PRELOAD, InvalidSetting, Setting, judge
from hidl_cli.tuning.layers import conflict
from hidl_workloads.doctor.finding import Evidence, Rules, Severity

#: Prefixes of MPI run-time variables.
PREFIXES = ("MV2_", "MVP_", "MPIR_CVAR_", "OMPI_MCA_")
#: Variable that contains the path of the GDRCopy library.
GDRCOPY = "MV2_GPUDIRECT_GDRCOPY_LIB"

#: Variable that selects the network module in MPICH and its derivatives, and the modules printed by ``mpichversion``.
_NETMOD = "MPIR_CVAR_CH4_NETMOD"
_DEVICE = re.compile(r"Device:\s+ch4:([a-z, ]+)$", re.MULTILINE)
_ADAPTERS = "/sys/class/infiniband"
_INTERFACES = "/sys/class/net"
_SECONDS = 10.0


@dataclass(frozen=True)
class Tuning:
    """The ranks' variables, and the files and adapters that they refer to.

    Attributes:
        gpus: Number of GPUs per node, or None if unknown.
        adapters: Names in /sys/class/infiniband, or None if unknown.
        interfaces: Names in /sys/class/net, or None if unknown.
        missing: Libraries that do not exist, by the variable that refers to them.
        netmods: An MPICH library's network modules if a variable selects one of them, or None if unknown.
        on_this_host: Whether the ranks run on this machine.
    """

    job: PlannedJob
    gpus: int | None = None
    adapters: tuple[str, ...] | None = None
    interfaces: tuple[str, ...] | None = None
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    netmods: tuple[str, ...] | None = None
    on_this_host: bool = True

    @property
    def shell(self) -> dict[str, str]:
        """The MPI run-time variables that are only set in the shell."""
        return {name: value for name, value in self.job.inherited.items() if name.startswith(PREFIXES)}


def probe(context: Context) -> Tuning:
    """Examine the job's tuning and, on a site host, the files and adapters that the tuning refers to."""
    job, host = plan_job(context), context.host
    return Tuning(
        job=job,
        gpus=context.gpus,
        adapters=host.list(_ADAPTERS) if context.is_here else None,
        interfaces=host.list(_INTERFACES) if context.is_here else None,
        missing=_missing(host, job) if context.is_here else {},
        netmods=_netmods(host, job) if context.is_here else None,
        on_this_host=context.site.scheduler == "local",
    )


def _selected(job: PlannedJob) -> tuple[str, str] | None:
    """Return the name and value of the variable that selects the network module, or None if it is not set."""
    names = sorted(catalogue.names_of(_NETMOD))
    return next(((name, job.environment[name]) for name in names if job.environment.get(name)), None)


def _netmods(host: Host, job: PlannedJob) -> tuple[str, ...] | None:
    if job.library is None or job.library.prefix is None or not _reads(job.library, _NETMOD) or not _selected(job):
        return None
    found = _DEVICE.search(host.ask(f"{job.library.prefix}/bin/mpichversion", seconds=_SECONDS) or "")
    return tuple(re.split("[, ]+", found[1].strip())) if found else None


def _missing(host: Host, job: PlannedJob) -> dict[str, tuple[str, ...]]:
    environment = job.environment
    libraries = {
        GDRCOPY: [environment.get(GDRCOPY, "")],
        LD_PRELOAD: environment.get(LD_PRELOAD, "").replace(os.pathsep, " ").split(),
    }
    missing = {name: tuple(file for file in files if _is_missing(host, file)) for name, files in libraries.items()}
    return {name: files for name, files in missing.items() if files}


def _is_missing(host: Host, file: str) -> bool:
    """Return whether ``file`` is an absolute path that does not exist.

    Bare names are resolved by the dynamic linker and are not checked.
    """
    path = PurePosixPath(file)
    return path.is_absolute() and "$" not in file and path.name not in host.list(str(path.parent))


RULES: Rules[Tuning] = Rules()
_ON = ("1", "true", "yes")
#: Variables that contain adapter names, and the separators between these names.
_ADAPTER_VARIABLES = {
    "MV2_IBA_HCA": r"[:,]",
    "OMPI_MCA_btl_openib_if_include": r",",
    "NCCL_IB_HCA": r",",
    "UCX_NET_DEVICES": r",",
}


@RULES.rule(
    "HD021",
    "A tuning variable has no effect",
    severity="warning",
    why="MPI libraries silently ignore unknown variables, so you measure untuned performance. MVAPICH 3 and later, "
    "MVAPICH-Plus, MPICH and Open MPI do not read MV2_* variables.",
)
def unread(facts: Tuning) -> Iterator[Evidence]:
    """Report a warning if a variable in the shell is not read by the job's library, or not passed to the ranks."""
    library = facts.job.library
    if library is None:
        return
    for name, value in sorted(facts.shell.items()):
        judged = judge(library.family, library.version, name, value)
        mild: Severity | None = None if name.startswith(("MV2_", "MVP_")) else "info"
        if isinstance(judged, InvalidSetting) and judged.on_name:
            expected = f"; expected: {judged.expected}" if judged.suggestion else ""
            yield Evidence(f"{name} in your shell: {judged.message}{expected}", f"unset {name}", severity=mild)
        elif not facts.job.inherits_environment:
            cause = "with mpirun_rsh" if facts.job.launcher == "mpirun_rsh" else "in the site's jobs (--export=NONE)"
            yield Evidence(
                f"{name} in your shell does not reach the ranks: {cause}, only variables set by hidl do",
                f"unset {name}, and pass it to the run: hidl run --tune {sh(f'{name}={value}')}",
            )


@RULES.rule(
    "HD026",
    "A tuning variable has an invalid value",
    severity="warning",
    why="MPICH and MVAPICH 3 and later abort in MPI_Init. Other libraries silently use 0 or their default instead.",
)
def unfit(facts: Tuning) -> Iterator[Evidence]:
    """Report a warning if a variable in the shell has an invalid value, and an error if MPI_Init would fail.

    The network module is also checked if the run selects it.
    """
    library = facts.job.library
    if library is None:
        return
    for name, value in sorted(facts.job.inherited.items() if facts.job.inherits_environment else ()):
        known = catalogue.variable(name, library.family)
        judged = judge(library.family, library.version, name, value, exported=True) if known else None
        if known and isinstance(judged, InvalidSetting) and not judged.on_name:
            fix = f"export {name}={sh(judged.suggestion)}" if judged.suggestion else f"unset {name}"
            seen = f"{judged.message} (in your shell); expected: {judged.expected}"
            yield Evidence(seen, fix, severity="error" if is_control(known) else None)
    selected = _selected(facts.job)
    if facts.netmods and selected and selected[1].casefold() not in facts.netmods:
        name, value = selected
        fix = f"--tune {name}={facts.netmods[0]}" if name in facts.job.configured else f"unset {name}"
        seen = f"{name}={value}, but this {library.family} was built with {' or '.join(facts.netmods)}"
        yield Evidence(seen, fix, severity="error")


@RULES.rule(
    "HD022",
    "MVAPICH2-GDR runs without MV2_USE_CUDA",
    severity="warning",
    why="Support for GPU memory is off by default. Without MV2_USE_CUDA=1 (MV2_USE_ROCM=1 on AMD), a rank dies with a "
    "segmentation fault when it sends its first GPU buffer.",
)
def cuda_is_off(facts: Tuning) -> Iterator[Evidence]:
    """Report a warning if the nodes have GPUs and the plan, or a shell with an active stack, does not enable CUDA."""
    job = facts.job
    if job.library is None or job.library.family != "mvapich2-gdr" or not facts.gpus:
        return
    values = {name: job.environment[name] for name in ("MV2_USE_CUDA", "MV2_USE_ROCM") if name in job.environment}
    if any(value.lower() in _ON for value in values.values()) or not (job.planned or job.is_active):
        return
    seen = " ".join(f"{name}={value}" for name, value in values.items()) or "MV2_USE_CUDA is not set"
    yield Evidence(
        f"{seen} on nodes with {facts.gpus} GPU(s)",
        "--tune MV2_USE_CUDA=1" if job.planned else "export MV2_USE_CUDA=1",
        severity="error" if facts.job.device_buffers else None,
    )


@RULES.rule(
    "HD023",
    "libmpi.so is preloaded although MV2_SUPPORT_DL is set",
    severity="error",
    why="Both make MVAPICH2-GDR track GPU memory if Python loads CUDA first, and its user guide (2.3.7, section 7.3) "
    "does not allow their combination.",
)
def both_remedies(facts: Tuning) -> Iterator[Evidence]:
    """Report an error if the shell preloads libmpi.so and the plan or the shell sets MV2_SUPPORT_DL."""
    library, job = facts.job.library, facts.job
    if library is None or library.family != "mvapich2-gdr" or not job.inherits_environment:
        return
    inherited = {name: value for name, value in job.inherited.items() if name in facts.shell or name == LD_PRELOAD}
    settings = [Setting(name, value, "the run's tuning") for name, value in job.configured.items()]
    settings += [Setting(name, value, "your shell") for name, value in inherited.items()]
    if inherited and (found := conflict(settings, library.environment)):
        yield Evidence(found.message, f"unset {LD_PRELOAD}" if LD_PRELOAD in inherited else found.expected)


@RULES.rule(
    "HD024",
    "A library that a variable refers to is not found",
    severity="error",
    why="Without the GDRCopy library, MVAPICH2-GDR fails to start or copies small GPU messages through the host, which "
    "is several times slower. Missing files in LD_PRELOAD are ignored with a message on stderr.",
)
def library_missing(facts: Tuning) -> Iterator[Evidence]:
    """Report an error if GDRCopy's library is missing where the ranks run, and a warning for any other missing file.

    Files that are missing on a login node may exist on the job's nodes.
    """
    for name, files in facts.missing.items():
        fix = f"unset {name}, or correct the path"
        if name in facts.job.configured:
            fix = f"correct {name} in the site file, or use: hidl run --tune {name}=PATH"
        for file in files:
            yield Evidence(
                f"{name}: {file} not found",
                fix,
                where=file,
                severity=None if facts.on_this_host and name == GDRCOPY else "warning",
            )


@RULES.rule(
    "HD025",
    "A network adapter that a variable refers to is not found",
    severity="error",
    why="Ranks fail in MPI_Init (`No active HCAs found`) or silently use another network.",
)
def adapter_missing(facts: Tuning) -> Iterator[Evidence]:
    """Report an error, or a warning on login nodes. Nothing is reported on login nodes without adapters."""
    if facts.adapters is None or not (facts.adapters or facts.on_this_host):
        return
    existing = {*facts.adapters, *(facts.interfaces or ())}
    for name, separator in _ADAPTER_VARIABLES.items():
        value = facts.job.environment.get(name, "")
        if name.startswith(PREFIXES) and not _reads(facts.job.library, name):
            continue
        if name.startswith("NCCL") and value.startswith("^"):  # excluded adapters
            continue
        exactly = not name.startswith("NCCL") or value.startswith("=")  # NCCL matches prefixes
        for word in re.split(separator, value.lstrip("=")):
            adapter = word.partition(":")[0].strip()
            known = adapter in existing if exactly else any(each.startswith(adapter) for each in existing)
            if adapter and adapter != "all" and not adapter.isdecimal() and not known:
                yield Evidence(
                    f"{name}={value}: {adapter} not found; this host has {', '.join(facts.adapters) or 'none'}",
                    f"set {name} to an adapter in /sys/class/infiniband of a compute node",
                    severity=None if facts.on_this_host else "warning",
                )


def _reads(library: Library | None, name: str) -> bool:
    known = library and (catalogue.variable(name, library.family) or catalogue.pattern(name, library.family))
    return bool(known)


SUBJECTS = (Subject(probe, RULES, before_runs=True),)
