"""Examine all subjects in parallel."""

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
from hidl_cli.diagnoses import Diagnosis, load_diagnoses
from hidl_cli.doctor.context import CachedHost, Context, Subject, load_subjects, stack_directories
from hidl_cli.errors import InvalidInput, SchedulerUnreachable, UsageError
from hidl_cli.inputs.check import Strict
from hidl_cli.launch.launchers.srun import mpi_type
from hidl_cli.launch.library import launcher_for, library_for, site_tuning
from hidl_cli.mpi import Library
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.workload import Value
from hidl_cli.site.detect import choose, detect
from hidl_cli.site.load import load_site
from hidl_cli.site.machine import machine
from hidl_cli.site.outputs import survey_folder
from hidl_cli.site.probes.facts import SchedulerFacts
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.site.probes.survey import DESCRIPTION, RecordingHost, load_host, survey
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.installation import UNSET, roots
from hidl_workloads.doctor.finding import Evidence, Finding, Rules, worst_first

RULES: Rules[str] = Rules()


def _register(diagnosis: Diagnosis) -> None:
    """Make the diagnosis a rule, with its first example as its documentation."""

    def matches(text: str) -> Iterator[Evidence]:
        match = diagnosis.first_match(text)
        if match is not None:
            finding = diagnosis.finding(match)
            yield Evidence(finding.seen, finding.fix, finding.where)

    example = next(matches(diagnosis.examples[0].text))
    matches.__doc__ = f"From the output of a job, for example: {example.seen}"
    RULES.rule(diagnosis.id, diagnosis.title, severity=diagnosis.severity, why=diagnosis.why)(matches)


for _diagnosis in load_diagnoses():
    _register(_diagnosis)


# Published vulnerabilities of packages, from ``recipes/advisories.yaml``: no network is used.


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from error
    return text


class Advisory(Strict):
    """One vulnerability: ``affected`` version ranges, and the first fixed version; None: ``fix`` describes a
    workaround."""

    id: Annotated[str, Field(pattern=r"^(CVE|GHSA|PYSEC)-[0-9A-Za-z-]+$")]
    packages: Annotated[list[str], Field(min_length=1)]
    affected: Annotated[list[Annotated[str, AfterValidator(_specifier)]], Field(min_length=1)]
    fixed: str | None
    text: str
    fix: str | None = None
    url: Annotated[str, Field(pattern=r"^https://")]

    @model_validator(mode="after")
    def _mendable(self) -> Advisory:
        if (self.fixed is None) == (self.fix is None):
            raise ValueError(f"{self.id}: either `fixed` or `fix`")
        return self

    def affects(self, version: str) -> bool:
        """Whether that version is affected; False if it is not a PEP 440 version."""
        try:
            parsed = Version(version)
        except InvalidVersion:
            return False
        return any(SpecifierSet(each).contains(parsed, prereleases=True) for each in self.affected)


class Advisories(Strict):
    """All advisories, as of a date."""

    as_of: date
    advisories: list[Advisory]


@cache
def load_advisories() -> Advisories:
    """Read the shipped advisories. Raises ``InvalidInput`` if the file is invalid."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    file = paths.shipped() / "recipes" / "advisories.yaml"
    try:
        return Advisories.model_validate(yaml.load(file.read_text(encoding="utf-8"), loader))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise InvalidInput(f"invalid advisories in {file}: {error}") from error


def find_advisories(versions: Mapping[str, str]) -> Iterator[tuple[str, str, list[Advisory]]]:
    """Yield the affected packages of ``versions`` (name to version), with their version and advisories."""
    for package, version in versions.items():
        found = [each for each in load_advisories().advisories if package in each.packages and each.affects(version)]
        if found:
            yield package, version, found


# The planned job: its MPI library, its launcher, and the environment of its ranks.


#: Launchers that are not part of an MPI library.
_OF_THE_SITE = ("srun", "ibrun", "jsrun")
_EXPORTING = ("-export", "-export-all")
_GPU_ARRAYS = ("cupy", "numba")


@dataclass(frozen=True)
class PlannedJob:
    """The job of the plan, or the one that hidl would plan by default.

    ``library``: linked by its ranks, None if unknown. ``program``: of its launcher, a path or a name; ``mpi_type``: of
    ``srun --mpi=``. ``given``: variables that hidl or the site sets for all ranks. ``carried``: other variables of the
    shell that started hidl; they reach the ranks if ``is_carried``. ``planned``: the run is about to be submitted.
    ``device_buffers``: its program passes GPU memory to MPI. ``is_active``: the stack is activated in the shell, where
    launchers may be called manually.
    """

    library: Library | None = None
    launcher: str | None = None
    program: str | None = None
    mpi_type: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    is_carried: bool = True
    planned: bool = False
    device_buffers: bool = False
    is_active: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the ranks."""
        return {**(self.carried if self.is_carried else {}), **self.given}


def plan_job(context: Context) -> PlannedJob:
    """The job of the plan, of the installation, or one with only an environment."""
    plan, site = context.plan, context.site
    library: Library | None
    launcher: str | None
    program: str | None
    if plan is not None:
        launch = plan.steps[0].launch
        library, launcher, program = plan.mpi, plan.launcher, launch.argv[0]
        kind = next((word.partition("=")[2] for word in launch.argv if word.startswith("--mpi=")), None)
        given = {**plan.environment, **launch.environment}
    else:
        library = _library(context)
        launcher = _launcher(context, library) if library else None
        program = _program(library, launcher) if library and launcher else None
        kind = mpi_type(library) if library and launcher == "srun" else None
        given = {**site.policies.environment, **_of_the_library(context, library)}
    carried = {
        name: value for name, value in context.host.environment.items() if name not in given and name not in UNSET
    }
    return PlannedJob(
        library=library,
        launcher=launcher,
        program=program,
        mpi_type=kind,
        given=given,
        carried=carried,
        is_carried=site.policies.export != "none" and (launcher != "mpirun_rsh" or _exports(library)),
        planned=plan is not None,
        device_buffers=plan is not None and uses_device_buffers(plan),
        is_active=context.is_active,
    )


def _library(context: Context) -> Library | None:
    installation = context.installation
    if installation is None or (noted := installation.mpi) is None:
        return None
    own = Library(context.stack or "", noted[0], version=noted[1], prefix=str(installation.prefix))
    return library_for(context.site, own, None, gpus=bool(context.gpus))


def _launcher(context: Context, library: Library) -> str | None:
    with suppress(UsageError):
        return launcher_for(context.site, library, None)
    return None


def _program(library: Library, launcher: str) -> str:
    return launcher if launcher in _OF_THE_SITE else library.program(launcher)


def _of_the_library(context: Context, library: Library | None) -> dict[str, str]:
    """The site's environment and tuning of its library."""
    if library is None or library.name not in context.site.mpi:
        return {}
    tuning = site_tuning(context.site, library, gpus=bool(context.gpus))
    return {**library.environment, **{name: str(value) for name, value in tuning.items()}}


def _exports(library: Library | None) -> bool:
    """Whether the site makes mpirun_rsh export the environment, which is not its default."""
    return any(word in _EXPORTING for word in library.launcher_arguments.get("mpirun_rsh", ())) if library else False


def uses_device_buffers(plan: Plan) -> bool:
    """Whether any step passes arrays in GPU memory to MPI."""
    on_gpus = plan.device == "gpu"
    return any(_on_device({**plan.parameters, **step.point}, on_gpus=on_gpus) for step in plan.steps)


def _on_device(parameters: Mapping[str, Value], *, on_gpus: bool) -> bool:
    """By the parameters of the shipped workloads: OMB's buffers, training's direct ones, Dask over MPI."""
    of_dask = on_gpus and parameters.get("protocol") == "mpi"
    direct = on_gpus and parameters.get("gpu_buffers") == "direct"
    placed = on_gpus and "D" in str(parameters.get("places", "")).split("-")
    return of_dask or direct or placed or parameters.get("buffer") in _GPU_ARRAYS


# Record a machine for somebody who looks into it elsewhere, and examine one that was recorded.


def collect(directory: Path, site: str | None) -> Sequence[str]:
    """Ask this machine all that ``hidl site new``, ``detect`` and ``doctor`` ask, and write it to ``directory``.

    ``site``: its name, None for the detected one. Returns the names of the files.
    """
    found = load_site(site)
    host = RecordingHost(CachedHost(ThisHost()))
    this = machine()
    try:
        survey(host, this)
    except SchedulerUnreachable:  # recorded too
        survey(host, this, alone=True)
    detect(host, thorough=True)
    examine(contexts(found, roots=roots(found), host=host))
    return host.write(directory, this)


def examine_recorded(directory: Path, site: str | None) -> tuple[Examined, str, str]:
    """Examine a recorded machine, or saved outputs; also return the names of its site and of the host.

    ``site``: None for the one whose ``match`` holds for the recording; ``UsageError`` if there is none.
    """
    saved = None
    if directory.is_dir() and not (directory / DESCRIPTION).is_file():
        saved = survey_folder(directory).batch
    host = load_host(directory)
    name = site or choose(detect(host))
    if name is None:
        raise UsageError(
            f"no site matches the machine in {directory}",
            hint=f"name one with --site; hidl site new --from {directory} drafts one",
        )
    found = load_site(name)
    if saved is not None and saved.scheduler != found.scheduler:
        raise UsageError(
            f"{directory} holds outputs of {SYSTEMS[saved.scheduler].title}, and the scheduler of site {name} is "
            f"{found.scheduler}",
            hint="name the site that they are of with --site",
        )
    return examine(contexts(found, roots=(Path(os.devnull),), host=host, saved=saved)), found.name, host.hostname


_AT_ONCE = 16


@dataclass(frozen=True)
class Examined:
    """Findings, worst first, and what could not be examined."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...] = ()

    def __add__(self, other: Examined) -> Examined:
        """The union of both."""
        findings = worst_first(dict.fromkeys((*self.findings, *other.findings)))
        return Examined(tuple(findings), tuple(dict.fromkeys((*self.unknown, *other.unknown))))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity error."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def examine(contexts: Sequence[Context], subjects: Sequence[Subject[Any]] | None = None) -> Examined:
    """Examine every context for all ``subjects`` (default: every one), in threads: some run slow programs.

    A finding that several contexts share is reported once. The contexts share one host.
    """
    chosen = load_subjects() if subjects is None else subjects
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        asked = [threads.submit(subject.examine, context) for context in contexts for subject in chosen]
        findings = {finding: None for one in asked for finding in one.result()}
    unknown = [sentence for context in contexts for sentence in (*_unknown(context), *context.host.failures)]
    return Examined(tuple(worst_first(findings)), tuple(dict.fromkeys(unknown)))


def _unknown(context: Context) -> Iterator[str]:
    """What these rules cannot examine, and why."""
    site, plan = context.site, context.plan
    if not context.is_here:
        yield f"this host is not part of site {site.name}: only the site file was checked"
    if context.stack is None:
        yield f"no stack is installed for site {site.name}, so MPI was not checked: hidl install STACK"
    elif context.installation is None and plan is None:
        yield f"stack {context.stack} is not in use for site {site.name}, so its MPI was not checked"


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
    """One context for each installation in use of ``stack``, or of any stack below ``roots`` and the activated one;
    without any, one of the host and the site."""
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


def before_runs(plans: Iterable[Plan], site: Site) -> Examined:
    """Apply the cheap rules before the jobs of ``plans`` are submitted."""
    host = CachedHost(ThisHost())
    asked = [Context(host, site, installation.at(Path(plan.prefix)), plan.stack, plan) for plan in plans]
    return examine(asked, [subject for subject in load_subjects() if subject.before_runs])
