"""Examine the host, a site and its stacks, and record a machine so that it can be examined elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, ValidationError, model_validator

from hidl_cli import paths
from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.doctor.context import CachedHost, Context, Subject, load_subjects, stack_directories
from hidl_cli.errors import InvalidInput, MissingPrecondition, SchedulerUnreachable, UsageError
from hidl_cli.inputs.check import Strict
from hidl_cli.launch.library import launcher_for, library_for, site_tuning
from hidl_cli.mpi import Library
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.workload import Value
from hidl_cli.site.detect import choose, detect
from hidl_cli.site.load import load_site
from hidl_cli.site.machine import machine
from hidl_cli.site.probes.facts import SchedulerFacts
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.installation import UNSET, roots
from hidl_workloads.doctor.finding import Finding, worst_first

# Published package vulnerabilities, read from ``recipes/advisories.yaml`` without network access.


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from error
    return text


class SecurityAdvisory(Strict):
    """A published vulnerability.

    Attributes:
        affected: Ranges of affected versions.
        fixed: First fixed version, or None if there is none.
        fix: Workaround, if there is no fixed version.
    """

    id: Annotated[str, Field(pattern=r"^(CVE|GHSA|PYSEC)-[0-9A-Za-z-]+$")]
    packages: Annotated[list[str], Field(min_length=1)]
    affected: Annotated[list[Annotated[str, AfterValidator(_specifier)]], Field(min_length=1)]
    fixed: str | None
    text: str
    fix: str | None = None
    url: Annotated[str, Field(pattern=r"^https://")]

    @model_validator(mode="after")
    def _has_one_fix(self) -> SecurityAdvisory:
        if (self.fixed is None) == (self.fix is None):
            raise ValueError(f"{self.id}: requires either `fixed` or `fix`")
        return self

    def affects(self, version: str) -> bool:
        """Return whether a version is affected. Versions that do not follow PEP 440 are never affected."""
        try:
            parsed = Version(version)
        except InvalidVersion:
            return False
        return any(SpecifierSet(each).contains(parsed, prereleases=True) for each in self.affected)


class Advisories(Strict):
    """All advisories as of a date."""

    as_of: date
    advisories: list[SecurityAdvisory]


@cache
def load_advisories() -> Advisories:
    """Read the advisories that are shipped with hidl.

    Raises:
        InvalidInput: If the file is invalid.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    file = paths.shipped() / "recipes" / "advisories.yaml"
    try:
        return Advisories.model_validate(yaml.load(file.read_text(encoding="utf-8"), loader))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise InvalidInput(f"invalid advisories in {file}: {error}") from error


def find_advisories(versions: Mapping[str, str]) -> Iterator[tuple[str, str, list[SecurityAdvisory]]]:
    """Yield each affected package with its version and advisories. ``versions`` maps package names to versions."""
    for package, version in versions.items():
        found = [each for each in load_advisories().advisories if package in each.packages and each.affects(version)]
        if found:
            yield package, version, found


# The planned job: its MPI library, its launcher and the environment of its ranks.


#: Launchers that are not part of an MPI library.
_SITE_LAUNCHERS = ("srun", "ibrun", "jsrun")
_EXPORTING = ("-export", "-export-all")
_GPU_ARRAYS = ("cupy", "numba")


@dataclass(frozen=True)
class PlannedJob:
    """The job in a plan, or the one that hidl would plan by default.

    Attributes:
        library: MPI library that the ranks are linked to, or None if unknown.
        program: Path or name of the launcher's program.
        mpi_type: Value of ``srun --mpi=``.
        configured: Variables set by hidl or the site for all ranks.
        inherited: Other variables in the shell that started hidl.
        inherits_environment: Whether the ``inherited`` variables reach the ranks.
        planned: Whether the job is about to be submitted.
        device_buffers: Whether the program passes GPU memory to MPI.
        is_active: Whether the stack is activated in the shell, in which users may call launchers manually.
    """

    library: Library | None = None
    launcher: str | None = None
    program: str | None = None
    mpi_type: str | None = None
    configured: Mapping[str, str] = field(default_factory=dict)
    inherited: Mapping[str, str] = field(default_factory=dict)
    inherits_environment: bool = True
    planned: bool = False
    device_buffers: bool = False
    is_active: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the ranks."""
        return {**(self.inherited if self.inherits_environment else {}), **self.configured}


def plan_job(context: Context) -> PlannedJob:
    """Return the job of the plan, or else the installation's default job, or else a job with only an environment."""
    plan, site = context.plan, context.site
    library: Library | None
    launcher: str | None
    program: str | None
    if plan is not None:
        launch = plan.steps[0].launch
        library, launcher, program = plan.mpi, plan.launcher, launch.argv[0]
        srun_type = next((word.partition("=")[2] for word in launch.argv if word.startswith("--mpi=")), None)
        configured = {**plan.environment, **launch.environment}
    else:
        library = _library(context)
        launcher = _launcher(context, library) if library else None
        program = _program(library, launcher) if library and launcher else None
        srun_type = _mpi_type(library) if library and launcher == "srun" else None
        configured = {**site.policies.environment, **_library_environment(context, library)}
    inherited = {
        name: value for name, value in context.host.environment.items() if name not in configured and name not in UNSET
    }
    return PlannedJob(
        library=library,
        launcher=launcher,
        program=program,
        mpi_type=srun_type,
        configured=configured,
        inherited=inherited,
        inherits_environment=site.policies.export != "none" and (launcher != "mpirun_rsh" or _exports(library)),
        planned=plan is not None,
        device_buffers=plan is not None and uses_device_buffers(plan),
        is_active=context.is_active,
    )


def _library(context: Context) -> Library | None:
    installation = context.installation
    if installation is None or (recorded := installation.mpi) is None:
        return None
    own = Library(context.stack or "", recorded[0], version=recorded[1], prefix=str(installation.prefix))
    return library_for(context.site, own, None, gpus=bool(context.gpus))


def _launcher(context: Context, library: Library) -> str | None:
    with suppress(UsageError):
        return launcher_for(context.site, library, None)
    return None


def _program(library: Library, launcher: str) -> str:
    return launcher if launcher in _SITE_LAUNCHERS else library.program(launcher)


def _mpi_type(library: Library) -> str | None:
    from hidl_cli.launch.launchers.srun import mpi_type  # not loaded for sites without srun

    return mpi_type(library)


def _library_environment(context: Context, library: Library | None) -> dict[str, str]:
    """Return the environment and tuning that the site sets for its library."""
    if library is None or library.name not in context.site.mpi:
        return {}
    tuning = site_tuning(context.site, library, gpus=bool(context.gpus))
    return {**library.environment, **{name: str(value) for name, value in tuning.items()}}


def _exports(library: Library | None) -> bool:
    """Return whether the site makes mpirun_rsh export the environment, which it does not do by default."""
    return any(word in _EXPORTING for word in library.launcher_arguments.get("mpirun_rsh", ())) if library else False


def uses_device_buffers(plan: Plan) -> bool:
    """Return whether any step passes arrays that are in GPU memory to MPI."""
    on_gpus = plan.device == "gpu"
    return any(_on_device({**plan.parameters, **step.point}, on_gpus=on_gpus) for step in plan.steps)


def _on_device(parameters: Mapping[str, Value], *, on_gpus: bool) -> bool:
    """Return whether a step of a shipped workload (OMB, training or Dask) passes GPU memory to MPI."""
    of_dask = on_gpus and parameters.get("protocol") == "mpi"
    direct = on_gpus and parameters.get("gpu_buffers") == "direct"
    placed = on_gpus and "D" in str(parameters.get("places", "")).split("-")
    return of_dask or direct or placed or parameters.get("buffer") in _GPU_ARRAYS


# Recorded machines.


def collect(directory: Path, site: str | None) -> Sequence[str]:
    """Record all command output that ``hidl site new``, ``hidl site detect`` and ``hidl doctor`` use on this machine.

    Args:
        directory: Directory to write to.
        site: Name of the site (default: the detected site).

    Returns:
        The names of the files.
    """
    from hidl_cli.site.probes.survey import RecordingHost, survey  # loads all schedulers, which is not needed for runs

    found = load_site(site)
    host = RecordingHost(CachedHost(ThisHost()))
    this = machine()
    try:
        survey(host, this)
    except SchedulerUnreachable:  # the failed commands are recorded as well
        survey(host, this, alone=True)
    detect(host, thorough=True)
    examine(contexts(found, roots=roots(found), host=host))
    return host.write(directory, this)


def examine_recorded(directory: Path, site: str | None) -> tuple[DoctorReport, str, str]:
    """Examine a recorded machine or a directory of saved output.

    Args:
        directory: Directory of the recording.
        site: Name of the site (default: the site whose ``match`` fits the recording).

    Returns:
        The report, the name of the site and the name of the host.

    Raises:
        UsageError: If no site matches, or if the site's scheduler differs from the recorded one.
    """
    from hidl_cli.site.probes.survey import DESCRIPTION, load_host

    saved = None
    if directory.is_dir() and not (directory / DESCRIPTION).is_file():
        from hidl_cli.site.outputs import survey_folder  # not needed to examine a run

        saved = survey_folder(directory).batch
    host = load_host(directory)
    name = site or choose(detect(host))
    if name is None:
        raise UsageError(
            f"no site matches the machine in {directory}",
            hint=f"set --site, or draft a site file with: hidl site new --from {directory}",
        )
    found = load_site(name)
    if saved is not None and saved.scheduler != found.scheduler:
        raise UsageError(
            f"{directory} contains output of {SYSTEMS[saved.scheduler].title}, but the scheduler of site {name} is "
            f"{found.scheduler}",
            hint="set --site to the site on which the output was saved",
        )
    return examine(contexts(found, roots=(Path(os.devnull),), host=host, saved=saved)), found.name, host.hostname


_AT_ONCE = 16


@dataclass(frozen=True)
class DoctorReport:
    """Findings sorted by severity, and descriptions of what could not be examined."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...] = ()

    def __add__(self, other: DoctorReport) -> DoctorReport:
        findings = worst_first(dict.fromkeys((*self.findings, *other.findings)))
        return DoctorReport(tuple(findings), tuple(dict.fromkeys((*self.unknown, *other.unknown))))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings with severity ``error``."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def examine(contexts: Sequence[Context], subjects: Sequence[Subject[Any]] | None = None) -> DoctorReport:
    """Examine all contexts for all ``subjects``, in threads because some probes run slow programs.

    Findings that occur in several contexts are reported once. All contexts must have the same host.
    """
    chosen = load_subjects() if subjects is None else subjects
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        futures = [threads.submit(subject.examine, context) for context in contexts for subject in chosen]
        findings = {finding: None for future in futures for finding in future.result()}
    unknown = [sentence for context in contexts for sentence in (*_unknown(context), *context.host.failures)]
    return DoctorReport(tuple(worst_first(findings)), tuple(dict.fromkeys(unknown)))


def _unknown(context: Context) -> Iterator[str]:
    """Describe what cannot be examined, and why."""
    site, plan = context.site, context.plan
    if not context.is_here:
        yield f"this host is not part of site {site.name}, so only the site file was checked"
    if context.stack is None:
        yield f"no stack is installed for site {site.name}, so MPI was not checked; run: hidl install STACK"
    elif context.installation is None and plan is None:
        yield f"stack {context.stack} is not in use on site {site.name}, so its MPI was not checked"


def contexts(
    site: Site,
    *,
    roots: Sequence[Path],
    stack: str | None = None,
    nodes: int | None = None,
    host: Host | None = None,
    deep: bool = False,
    saved: SchedulerFacts | None = None,
) -> list[Context]:
    """Return a context for each installation in use, or a single context for the host and the site if there is none.

    Args:
        site: Site to examine.
        roots: Installation roots.
        stack: Name of the only stack to examine (default: all stacks below ``roots`` and the activated one).
        nodes: Number of compute nodes to examine.
        host: Host to examine (default: this host).
        deep: Whether to read every file in the installations.
        saved: Scheduler description from saved output.
    """
    shared = CachedHost(host or ThisHost())
    directories = stack_directories(roots, site.name, stack) or ([roots[-1] / site.name / stack] if stack else [])
    found = [(directory, installation.current(directory)) for directory in directories]
    active = Path(shared.environment.get("VIRTUAL_ENV") or os.devnull)
    if stack is None and active not in [prefix for _, prefix in found] and installation.at(active):
        found.append((active.parent, active))
    return [
        Context(
            shared,
            site,
            installation.at(prefix) if prefix else None,
            directory.name,
            nodes=nodes,
            roots=(directory.parents[1],),
            deep=deep,
        )
        for directory, prefix in found
    ] or [Context(shared, site, nodes=nodes, roots=tuple(roots), saved=saved)]


def before_runs(plans: Iterable[Plan], site: Site) -> DoctorReport:
    """Examine the subjects whose probes are fast, before the jobs of ``plans`` are submitted."""
    host = CachedHost(ThisHost())
    planned = [Context(host, site, installation.at(Path(plan.prefix)), plan.stack, plan) for plan in plans]
    return examine(planned, load_subjects(before_runs=True))


def doctor_error(examined: DoctorReport, *, detailed: bool = False) -> MissingPrecondition:
    """Return the error for a run that the doctor expects to fail; ``detailed`` includes the doctor's findings."""
    ids = ", ".join(dict.fromkeys(finding.rule for finding in examined.errors))
    found = [f"  {each.rule} {each.title}: {each.seen}; fix: {each.fix}" for each in examined.errors]
    return MissingPrecondition(
        "\n".join([f"the run would fail: {ids}; nothing was submitted", *(found if detailed else ())]),
        hint="apply the fix and check again with hidl doctor, or skip these checks with --no-check",
    )
