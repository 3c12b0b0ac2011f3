"""Rules: run-time variables of the MPI library. What hidl gives the ranks was judged when the run was planned; here it
is what the user's shell carries on to them, and what their values lead to on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.tuning import GDRCOPY, PREFIXES, Tuning, probe
from hidl_cli.mpi import Library
from hidl_cli.quoting import sh
from hidl_cli.tuning import catalogue
from hidl_cli.tuning.judge import Misfit, judge
from hidl_cli.tuning.layers import LD_PRELOAD, Setting
from hidl_cli.tuning.preload import conflict
from hidl_workloads.doctor.finding import Finding, Rules, Seen, Severity

RULES: Rules[Tuning] = Rules()

_ON = ("1", "true", "yes")
#: Variables that name adapters, and what stands between the names.
_NAMING = {
    "MV2_IBA_HCA": r"[:,]",
    "OMPI_MCA_btl_openib_if_include": r",",
    "NCCL_IB_HCA": r",",
    "UCX_NET_DEVICES": r",",
}


def examine(context: Context) -> list[Finding]:
    """What is wrong with the tuning that ranks get."""
    return RULES.findings(probe(context))


@RULES.rule(
    "HD021",
    "A tuning variable is set where nothing reads it",
    severity="warning",
    why="MPI libraries ignore variables that they do not know without a word: what you measure is not what you tuned. "
    "MVAPICH 3 and later, MVAPICH-Plus, MPICH and Open MPI read no MV2_* variable.",
)
def unread(facts: Tuning) -> Iterator[Seen]:
    """Set in the shell, and not read by the job's library, or not passed on to the ranks."""
    library = facts.job.library
    if library is None:
        return
    for name, value in sorted(facts.shell.items()):
        judged = judge(library.family, library.version, name, value)
        mild: Severity | None = None if name.startswith(("MV2_", "MVP_")) else "info"
        if isinstance(judged, Misfit) and judged.on_name:
            helps = f"; expected: {judged.expected}" if judged.suggestion else ""
            yield Seen(f"{name} in your shell: {judged.message}{helps}", f"unset {name}", severity=mild)
        elif not facts.job.is_carried:
            who = "mpirun_rsh" if facts.job.launcher == "mpirun_rsh" else "the site's jobs (--export=NONE)"
            yield Seen(
                f"{name} in your shell does not reach the ranks: {who} passes on what hidl sets alone",
                f"unset {name}, and give it to the run: hidl run --mv2 {sh(f'{name}={value}')}",
            )


@RULES.rule(
    "HD026",
    "A tuning variable has a value that its library does not take",
    severity="warning",
    why="Libraries read a number, or one of some words, out of a value; of one that is none they make 0 or their "
    "default, without a word.",
)
def unfit(facts: Tuning) -> Iterator[Seen]:
    """Set in the shell, read by the library, of a wrong value."""
    library = facts.job.library
    if library is None or not facts.job.is_carried:
        return
    for name, value in sorted(facts.shell.items()):
        judged = judge(library.family, library.version, name, value)
        if isinstance(judged, Misfit) and not judged.on_name:
            yield Seen(f"{judged.message} (your shell); expected: {judged.expected}", f"unset {name}")


@RULES.rule(
    "HD022",
    "MVAPICH2-GDR runs without MV2_USE_CUDA",
    severity="warning",
    why="Its support of GPU memory is off by default: without MV2_USE_CUDA=1 (MV2_USE_ROCM=1 on AMD) the first GPU "
    "buffer that a rank sends ends it with a segmentation fault.",
)
def cuda_is_off(facts: Tuning) -> Iterator[Seen]:
    """On nodes with GPUs: in a plan that switches it off, or in a shell from which ranks are started by hand."""
    job = facts.job
    if job.library is None or job.library.family != "mvapich2-gdr" or not facts.gpus:
        return
    values = {name: job.environment[name] for name in ("MV2_USE_CUDA", "MV2_USE_ROCM") if name in job.environment}
    if any(value.lower() in _ON for value in values.values()) or not (job.planned or job.is_active):
        return
    what = " ".join(f"{name}={value}" for name, value in values.items()) or "MV2_USE_CUDA is not set"
    yield Seen(
        f"{what}, on nodes with {facts.gpus} GPU(s)",
        "--mv2 MV2_USE_CUDA=1" if job.planned else "export MV2_USE_CUDA=1",
        severity="error" if facts.device_buffers else None,
    )


@RULES.rule(
    "HD023",
    "LD_PRELOAD of libmpi.so together with MV2_SUPPORT_DL",
    severity="error",
    why="Both make MVAPICH2-GDR see GPU memory although Python loads CUDA first, and its user guide (2.3.7, section "
    "7.3) excludes one with the other.",
)
def both_remedies(facts: Tuning) -> Iterator[Seen]:
    """Each by itself is right; the shell's preload meets the preset of the plan, or both stand in the shell."""
    library, job = facts.job.library, facts.job
    if library is None or library.family != "mvapich2-gdr" or not job.is_carried:
        return
    carried = {name: value for name, value in job.carried.items() if name in facts.shell or name == LD_PRELOAD}
    settings = [Setting(name, value, "the run's tuning") for name, value in job.given.items()]
    settings += [Setting(name, value, "your shell") for name, value in carried.items()]
    if carried and (found := conflict(settings, library.environment)):
        yield Seen(found.message, f"unset {LD_PRELOAD}" if LD_PRELOAD in carried else found.expected)


@RULES.rule(
    "HD024",
    "A library that a variable names is not there",
    severity="error",
    why="Without GDRCopy's library MVAPICH2-GDR moves small GPU messages by way of the host, several times slower, or "
    "ends at start; what LD_PRELOAD names and is missing is left out with a line on stderr.",
)
def library_missing(facts: Tuning) -> Iterator[Seen]:
    """The path leads nowhere on this host; login nodes may lack what compute nodes have."""
    for name, files in facts.missing.items():
        mend = f"unset {name}, or mend the path"
        if name in facts.job.given:
            mend = f"the line of {name} in the site's file, or hidl run --mv2 {name}=PATH"
        for file in files:
            yield Seen(
                f"{name} names {file}, which is not there",
                mend,
                where=file,
                severity=None if facts.on_this_host and name == GDRCOPY else "warning",
            )


@RULES.rule(
    "HD025",
    "A network adapter that a variable names is not there",
    severity="error",
    why="Ranks end when they initialise MPI (`No active HCAs found`), or go over another network without a word.",
)
def adapter_missing(facts: Tuning) -> Iterator[Seen]:
    """Held against this host's adapters; those of a login node are a hint only, and say nothing where it has none."""
    if facts.adapters is None or not (facts.adapters or facts.on_this_host):
        return
    there = {*facts.adapters, *(facts.interfaces or ())}
    for name, separator in _NAMING.items():
        value = facts.job.environment.get(name, "")
        if name.startswith(PREFIXES) and not _reads(facts.job.library, name):
            continue
        if name.startswith("NCCL") and value.startswith("^"):  # those that are left out
            continue
        exactly = not name.startswith("NCCL") or value.startswith("=")  # NCCL takes beginnings of names
        for word in re.split(separator, value.lstrip("=")):
            adapter = word.partition(":")[0].strip()
            known = adapter in there if exactly else any(one.startswith(adapter) for one in there)
            if adapter and adapter != "all" and not adapter.isdecimal() and not known:
                yield Seen(
                    f"{name}={value}: there is no {adapter}; this host has {', '.join(facts.adapters) or 'none'}",
                    f"ls /sys/class/infiniband (on a compute node), and name one of those in {name}",
                    severity=None if facts.on_this_host else "warning",
                )


def _reads(library: Library | None, name: str) -> bool:
    known = library and (catalogue.variable(name, library.family) or catalogue.pattern(name, library.family))
    return bool(known)
