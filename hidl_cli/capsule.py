"""A run's capsule, which is a zip archive of the run's documents, lockfile, stack and site.

::

    capsule.json                       index: SHA-256 of every other member, versions, inputs
    run/plan.json  run/job.sh  ...     documents of the run
    run/stdout.log  run/stderr.log     end of the run's output
    lock.txt                           exact versions and hashes of the stack
    stack.yaml  site.yaml              stack and site, with everything they extend

A capsule may come from an untrusted source. Therefore, only members with known names are read, their size is limited,
and no member can choose the path that it is unpacked to.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from hidl_cli import paths
from hidl_cli.analysis.changes import Comparison, compare
from hidl_cli.analysis.samples import instant
from hidl_cli.documents import sha256, write_text
from hidl_cli.errors import HidlError, InvalidInput, MissingPrecondition, Problem, UsageError
from hidl_cli.inputs.check import FileName, Name
from hidl_cli.inputs.load import examine, valid
from hidl_cli.inputs.overlay import at_path, list_all
from hidl_cli.launch.library import OF_THE_STACK
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.plan.devices import DEVICE, GPUS_PER_RANK
from hidl_cli.plan.input_files import input_files, is_unchanged
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.parameters import matrix_word
from hidl_cli.plan.planning import MPI_ABI, network_environment
from hidl_cli.record import Run
from hidl_cli.redaction import HIDDEN, Secrets, fill, last_lines, names_in, read_end, shown
from hidl_cli.runs.verification import Provenance, differences
from hidl_cli.schedulers.build_allocation import build_job
from hidl_cli.site.checks import RULES as SITE_RULES
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack import lock as wheels
from hidl_cli.stack.checks import RULES, load_stack
from hidl_cli.stack.install import plan_install
from hidl_cli.stack.lock import Locked
from hidl_cli.stack.order import Order
from hidl_cli.stack.providers.spack import lock as spack
from hidl_cli.stack.schema import Stack
from hidl_cli.stack.target import site_for_accelerator
from hidl_cli.store.extract import samples_of

SCHEMA = "hidl.capsule/1"
SUFFIX = ".capsule"

#: Run documents in a capsule. The first three are required.
RUN_DOCUMENTS = (
    "plan.json",
    "status.json",
    "metrics.json",
    "job.sh",
    "verdict.json",
    "hosts",
    "stdout.log",
    "stderr.log",
)
_REQUIRED = ("run/plan.json", "run/status.json", "run/metrics.json", "lock.txt", "stack.yaml", "site.yaml")
_KNOWN = frozenset({*(f"run/{name}" for name in RUN_DOCUMENTS), *_REQUIRED})
_INDEX = "capsule.json"

#: Maximum sizes in bytes of a single file and of all files. A plan with thousands of steps takes up a few megabytes.
_MAX_MEMBER = 32 << 20
_MAX_TOTAL = 64 << 20
#: Timestamp of all files: the earliest that a zip archive supports. It is constant, so that the same run yields the
#: same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Input:
    """One of the run's input files, as it was when the run was submitted.

    ``modified`` is True if the file had changed by the time the capsule was made. In that case, ``sha256`` is empty if
    the content that the run used is unknown.
    """

    path: str
    size: int
    sha256: str
    modified: bool = False


@dataclass(frozen=True)
class Hidden:
    """A redacted value, shown as ``***NAME***`` at ``places`` in a capsule (``run/plan.json: parameters.token``)."""

    name: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Capsule:
    """The contents of a capsule, which is an archive of everything that is required to run a run again.

    Attributes:
        lock_name: File name that the lockfile requires in a directory of lockfiles.
        members: Content of the files, by name.
        hidden: Values that were secrets, or None in a capsule written by hidl 0.1, which does not list them.
        digest: SHA-256 of the whole file.
    """

    run: str
    hidl: str
    stack: str
    lock_name: str
    packages: Mapping[str, str]
    inputs: tuple[Input, ...]
    members: Mapping[str, bytes] = field(repr=False)
    digest: str = ""
    hidden: tuple[Hidden, ...] | None = ()

    def text(self, member: str) -> str:
        """Return a member as text. Raises ``InvalidInput`` if it is not UTF-8."""
        try:
            return self.members[member].decode()
        except UnicodeDecodeError as error:
            raise _invalid(f"{member} is not UTF-8 text") from error

    def to_bytes(self) -> bytes:
        """Return the bytes of the capsule file. Capsules with the same contents have the same bytes."""
        index = {
            "schema": SCHEMA,
            "run": self.run,
            "hidl": self.hidl,
            "stack": self.stack,
            "lock_name": self.lock_name,
            "packages": dict(self.packages),
            "inputs": [vars(each) for each in self.inputs],
            **({} if self.hidden is None else {"hidden": [vars(each) for each in self.hidden]}),
            "members": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(self.members.items())},
        }
        whole = BytesIO()
        with zipfile.ZipFile(whole, "w") as archive:
            text = json.dumps(index, indent=2, ensure_ascii=False) + "\n"
            for name, data in [(_INDEX, text.encode()), *sorted(self.members.items())]:
                entry = zipfile.ZipInfo(name, _TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, data)
        return whole.getvalue()


@dataclass(frozen=True)
class _Index:
    run: str
    hidl: str
    stack: Name
    lock_name: FileName
    packages: Mapping[str, str]
    inputs: tuple[Input, ...]
    members: Mapping[str, str]
    hidden: tuple[Hidden, ...] | None = None


def read(file: Path) -> Capsule:
    """Read a capsule. Raises ``UsageError`` if it cannot be read, and ``InvalidInput`` listing all its problems."""
    try:
        if file.stat().st_size > _MAX_TOTAL:
            raise _invalid(f"exceeds {_MAX_TOTAL >> 20} MiB")
        whole = file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", hint="to create one, run: hidl capsule RUN"
        ) from error
    try:
        return parse(whole)
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error.message}", problems=error.problems, hint=error.hint) from error


def is_capsule(file: Path) -> bool:
    """Return whether a file is a zip archive with the index of a capsule, of any version."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open(_INDEX) as member:
            document = json.loads(member.read(_MAX_MEMBER))
            return str(document["schema"]).startswith("hidl.capsule/")
    except (zipfile.BadZipFile, zlib.error, EOFError, LookupError, TypeError, ValueError, RuntimeError):
        return False


def parse(whole: bytes) -> Capsule:
    """Parse the bytes of a capsule. Raises ``InvalidInput`` listing all its problems."""
    members = _members(whole)
    index = _index(members.pop(_INDEX, b""))
    missing, unlisted = {*index.members, *_REQUIRED} - {*members}, {*members} - {*index.members}
    problems = [Problem(f"{name} is missing", "a complete capsule") for name in sorted(missing)]
    problems += [Problem(f"{name} is not listed in {_INDEX}", "a complete capsule") for name in sorted(unlisted)]
    problems += [
        Problem(f"{name} has changed since the capsule was made", f"SHA-256 {index.members[name]}")
        for name, data in members.items()
        if name in index.members and hashlib.sha256(data).hexdigest() != index.members[name]
    ]
    if problems:
        raise InvalidInput(
            "incomplete or modified capsule", problems=problems, hint="copy it again, or create a new one"
        )
    return Capsule(
        index.run,
        index.hidl,
        index.stack,
        index.lock_name,
        index.packages,
        index.inputs,
        members,
        hashlib.sha256(whole).hexdigest(),
        index.hidden,
    )


def _members(whole: bytes) -> dict[str, bytes]:
    """Return the archive's members. Reading stops at the size limits, regardless of the sizes the archive claims."""
    members: dict[str, bytes] = {}
    left = _MAX_TOTAL
    try:
        with zipfile.ZipFile(BytesIO(whole)) as archive:
            for entry in archive.infolist():
                if entry.filename not in _KNOWN and entry.filename != _INDEX:
                    raise _invalid(f"unknown member {entry.filename[:80]!r}")
                if entry.filename in members:
                    raise _invalid(f"duplicate member {entry.filename}")
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
                    raise _invalid(f"member {entry.filename} is encrypted or uses an unsupported compression method")
                with archive.open(entry) as member:
                    data = member.read(min(_MAX_MEMBER, left) + 1)
                left -= len(data)
                if len(data) > _MAX_MEMBER or left < 0:
                    raise _invalid(f"member {entry.filename} is too large")
                members[entry.filename] = data
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, RuntimeError) as error:
        raise _invalid(f"not a capsule: {error}") from error
    return members


def _index(data: bytes) -> _Index:
    try:
        document = json.loads(data.decode())
        if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
            raise _invalid(f"{_INDEX} is not a document with schema {SCHEMA}")
        return TypeAdapter(_Index).validate_python(document)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _invalid(f"{_INDEX} is not JSON") from error
    except ValidationError as error:
        problems = [Problem(each["msg"], "see hidl.capsule/1", path=each["loc"]) for each in error.errors()]
        raise InvalidInput(
            f"{_INDEX} is invalid", problems=problems, hint="to create a new one, run: hidl capsule RUN"
        ) from error


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(message, hint="to create one, run: hidl capsule RUN")


# Lockfiles of all providers.


def read_lock(file: Path) -> Locked:
    """Read a wheel or Spack lockfile, recognized by its content.

    Raises ``InvalidInput`` if the file is neither, and ``OSError`` if it cannot be read.
    """
    with file.open("rb") as content:
        is_json = content.read(64).lstrip().startswith(b"{")
    return spack.read(file) if is_json else wheels.read(file)


# Replay a capsule: install its stack from the lockfile, run its plan again, and compare the results.


#: Directory below the root of a site's installations for stacks that are only used in replays.
ROOT = "replays"


@dataclass(frozen=True)
class Original:
    """A replay's original run, read from a capsule and checked: the run, its plan and its stack.

    ``given`` lists the names of the redacted values that the user has supplied; these values are filled into the paths
    of ``inputs``.
    """

    capsule: Capsule
    run: Run
    plan: Plan
    stack: Stack
    given: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()

    def file(self, member: str) -> Path:
        """Return the path of an unpacked member."""
        return self.run.directory.parent / member

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the redacted values that the run requires but the user has not supplied.

        The name of an unnamed value is an empty string.
        """
        words = required_words(self.capsule)
        return tuple(name for name in words if name not in self.given)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Descriptions of the redacted values that the user has supplied."""
        return tuple(f"redacted value {name}: not in the capsule → supplied" for name in self.given)

    @property
    def provenance(self) -> Provenance:
        """The origin of the run's results."""
        return Provenance(self.plan, self.run.status().hosts, self.capsule.packages)


@dataclass(frozen=True)
class Replayed:
    """A replay compared with its original, and the differences in provenance between the two runs."""

    comparison: Comparison
    changed: tuple[str, ...]

    @property
    def answer(self) -> str:
        """The result in one line: ``same within noise``, or each metric that differs and by how much."""
        every = self.comparison.differences
        differing = [each for each in every if each.outcome in ("worse", "better", "different")]
        if differing:
            each_one = (
                f"{each.measure.metric}{each.measure.which} on {each.measure.ranks} rank(s) {each.shift:+.1%}"
                for each in differing
            )
            return "differs: " + "; ".join(each_one)
        return "inconclusive" if self.comparison.outcome == "inconclusive" else "same within noise"


def required_words(capsule: Capsule) -> tuple[str, ...]:
    """Return the names of the redacted values that a capsule's run requires.

    The name of an unnamed value is an empty string.
    """
    found = names_in(capsule.text("run/plan.json") + capsule.text("stack.yaml"))
    listed = None if capsule.hidden is None else {each.name for each in capsule.hidden}
    return tuple(name for name in found if listed is None or name in listed)


def read_hidden_words(capsules: Sequence[Capsule], assignments: Sequence[str]) -> dict[str, str]:
    """Return the redacted values that the capsules' runs require and that the user has supplied, by name.

    A value comes from ``assignments`` (``NAME=VALUE``), or else from the environment variable with that name. Raises
    ``UsageError`` for an assignment to a name that no capsule redacts.
    """
    needed = dict.fromkeys(name for capsule in capsules for name in required_words(capsule) if name)
    words = {name: os.environ[name] for name in needed if os.environ.get(name)}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or name.upper() not in needed:
            raise UsageError(
                f"invalid --set {name}: "
                + ("expected NAME=VALUE" if not equals else "no redacted value has this name"),
                hint=f"redacted values that the run requires: {', '.join(needed) or 'none'}",
            )
        words[name.upper()] = value
    return words


def require_words(original: Original) -> None:
    """Raise ``MissingPrecondition`` if the run requires redacted values that the user has not supplied."""
    missing = original.missing
    if "" in missing or (missing and original.capsule.hidden is None):
        raise MissingPrecondition(
            f"the capsule of run {original.plan.run} redacts values that the run requires, and does not name them",
            hint=f"create a new capsule on the machine of the original run: hidl capsule {original.plan.run}",
        )
    if missing:
        raise MissingPrecondition(
            f"the capsule of run {original.plan.run} redacts {len(missing)} value(s) that the run requires: "
            + ", ".join(missing),
            hint=f"use {' '.join(f'--set {name}=VALUE' for name in missing)}, or set variables of these names",
        )


@contextmanager
def unpacked(capsule: Capsule, words: Mapping[str, str] | None = None) -> Iterator[Original]:
    """Unpack a capsule's run into a temporary directory, and fill in its redacted values from ``words``, by name.

    Raises ``InvalidInput`` with every problem in the run's plan, stack or metrics.
    """
    with paths.temporary_directory("capsule") as directory:
        run = Run(directory / "run")
        for name, data in capsule.members.items():
            file = Path(directory, name)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(_filled(data, words) if words and name.endswith(".json") else data)
        try:
            plan = plan_of(run)
            run.status()
            samples_of(run)
        except HidlError as error:
            raise InvalidInput(
                f"cannot read the run of the capsule, which was created by hidl {capsule.hidl!r}: {error.message}"
            ) from error
        if read_lock(Path(directory, "lock.txt")).digest != plan.lock:
            raise InvalidInput("the lockfile of the capsule does not match the run's plan", hint="create a new capsule")
        named = Path(directory, "stacks", f"{capsule.stack}.yaml")
        write_text(named, capsule.text("stack.yaml"))
        stack = valid(examine(RULES, at_path("stack", named)))
        if words:
            stack = Stack.model_validate(fill(stack.model_dump(mode="json", by_alias=True), words))
        given = tuple(name for name in required_words(capsule) if name in (words or {}))
        inputs = tuple(replace(each, path=fill(each.path, words or {})) for each in capsule.inputs)
        yield Original(capsule, run, plan, stack, given, inputs)


def order_for(
    original: Original,
    site: Site,
    prefix: str | None,
    directory: Path,
    job: AllocationOptions,
    *,
    offline: bool = False,
) -> Order:
    """Return a request to install the capsule's stack from its lockfile, which is written to ``directory``.

    Nothing is installed if the stack in use has the same lockfile. Otherwise the stack is installed in a separate
    directory, and the stack in use is not changed. ``job`` contains the options for a build job. Raises
    ``MissingPrecondition`` if the lockfile cannot be used on this site.
    """
    capsule, stack = original.capsule, original.stack
    lock = directory / "locks" / capsule.lock_name
    write_text(lock, capsule.text("lock.txt"))
    site = site_for_accelerator(site, getattr(read_lock(lock), "accelerator", None))  # Spack lockfiles do not have this
    root = installation.root_of(site, stack.name, prefix)
    building = build_job(site, os.environ, job) if site.install.provider == "spack" else None
    order = Order(site, stack, root, locked=True, offline=offline, mirror=directory, build_job=building)
    try:
        in_use = installation.find(site, stack.name, root=root).lock == original.plan.lock
    except MissingPrecondition:
        in_use = False
    if not in_use:
        order = replace(order, root=(root if prefix else installation.own_root()) / ROOT)
    choice = plan_install(replace(order, locked=False)).choice
    if choice.lock is None or choice.lock.digest != original.plan.lock:
        reasons = "; ".join(each.reason for each in choice.passed_over if each.file.is_relative_to(directory))
        raise MissingPrecondition(
            f"lockfile {capsule.lock_name} of the capsule cannot be used: "
            + (reasons or f"stack {stack.name} on site {site.name} has another Python version or platform"),
            hint=f"to run the workload in this machine's stack, run: hidl run {original.plan.workload.name}",
        )
    return order


def request_of(
    original: Original, site: Site, prefix: str | None, job: AllocationOptions, repeat: int | None
) -> RunRequest:
    """Return the request that runs the capsule's plan on ``site``.

    On the original run's site, the request keeps the run's partition, launcher and MPI library and, if the run has
    several jobs, their time limit. On another site, it uses that site's defaults. ``job`` contains the user's job
    options, and ``repeat`` replaces the number of repetitions if it is not None.
    """
    plan = original.plan
    here = plan.site == site.name
    elastic = here and plan.allocation.least_nodes is not None
    steps = [step for step in plan.steps if not step.copies]
    placements = [step.placement for step in steps]
    first = placements[0]
    sizes = sorted({step.size for step in steps})
    per_node = {placement.ranks_per_node for placement in placements}
    threads = {placement.threads_per_rank for placement in placements}
    axes = _axes(plan.points)
    fixed = {name: value for name, value in plan.parameters.items() if name not in axes}
    return RunRequest(
        workload=plan.workload.name,
        nodes=None if plan.is_study else plan.allocation.nodes if elastic else first.nodes,
        least_nodes=plan.allocation.least_nodes if elastic else None,
        ranks_per_node=first.ranks_per_node if len(per_node) == 1 and not plan.is_study else _of_study(plan, per_node),
        threads=threads.pop() if len(threads) == 1 else None,
        parameters=[f"{name}={value}" for name, value in fixed.items()],
        matrix=[matrix_word(name, values) for name, values in axes.items()],
        tuning=[f"{each.name}={each.value}" for each in plan.tuning if each.origin == "--tune"],
        stack=plan.stack,
        scale=f"{plan.unit}={','.join(map(str, sizes))}" if plan.is_study else None,
        repeat=repeat or plan.repetitions,
        target=plan.target if plan.is_study else None,
        baseline=plan.baseline if plan.is_study else None,
        until_settled=plan.until_settled,
        until_done=bool(plan.max_jobs),
        max_jobs=plan.max_jobs or None,
        max_node_hours=plan.max_node_hours if here else None,
        max_cost=plan.max_cost if here else None,
        env_vars=_given_variables(original),
        precision=plan.precision if plan.is_study else None,
        launcher=plan.launcher if here else None,
        mpi=(OF_THE_STACK if plan.mpi_of_the_stack else plan.mpi.name) if here else None,
        device=plan.device,
        stdin=stdin_of(original),
        prefix=prefix,
        partition=job.partition or (plan.partition if here else None),
        account=job.account,
        constraint=job.constraint,
        hosts=job.hosts,
        qos=job.qos,
        reservation=job.reservation,
        time=plan.allocation.time_limit if job.time is None and here and plan.max_jobs else job.time,
    )


def _given_variables(original: Original) -> dict[str, str]:
    """Return the variables of ``--env-var``, without those that hidl derives from the site, MPI library and options."""
    plan = original.plan
    try:
        site = Site.model_validate(yaml.safe_load(original.capsule.text("site.yaml")))
    except (yaml.YAMLError, ValidationError) as error:
        raise InvalidInput("site.yaml of the capsule is invalid", hint="create a new capsule") from error
    derived = {**network_environment(site), **site.policies.environment, **plan.mpi.environment}
    threads = plan.steps[0].placement.environment()  # --env-var rejects them
    own = {DEVICE, GPUS_PER_RANK, MPI_ABI, *threads, *(setting.name for setting in plan.tuning)}
    return {name: value for name, value in plan.environment.items() if name not in own and derived.get(name) != value}


def stdin_of(original: Original) -> str | None:
    """Return the path of the run's standard input, or None if it has none.

    The path is absolute, even if the run kept a copy of the file in its directory.
    """
    stdin = original.plan.stdin
    if stdin is None or Path(stdin).is_absolute():
        return stdin
    found = [each.path for each in original.inputs if Path(each.path).parts[-2:] == (original.plan.run, stdin)]
    return found[0] if found else stdin


def check_inputs(original: Original) -> None:
    """Raise ``MissingPrecondition`` listing every run input that is missing or has changed."""
    capsule = original.capsule
    wrong = [
        (each.path, reason) for each in original.inputs if (reason := _input_problem(Path(each.path), each.sha256))
    ]
    if wrong:
        raise MissingPrecondition(
            "\n".join(
                [f"{len(wrong)} of {len(capsule.inputs)} inputs differ from the run's:"]
                + [f"  {path}: {reason}" for path, reason in wrong]
            ),
            hint="restore them, or use the current files with --changed-inputs",
        )


def compare_replay(original: Original, run: Run, packages: Mapping[str, str], tolerance: float) -> Replayed:
    """Compare the replay ``run`` with its original. Raises ``InvalidInput`` if they have no metric in common."""
    try:
        comparison = compare(samples_of(original.run), samples_of(run), tolerance=tolerance)
    except ValueError as error:
        raise InvalidInput(f"cannot compare the run and its replay: {error}") from error
    now = Provenance(plan_of(run), run.status().hosts, packages)
    return Replayed(comparison, (*differences(original.provenance, now), *original.replaced))


def write_result(original: Original, run: Run, replayed: Replayed) -> dict[str, Any]:
    """Write the result to ``replay.json`` in the replay's directory, and return it as plain data."""
    document = {
        "capsule": original.capsule.digest,
        "original": original.plan.run,
        "replay": run.id,
        "answer": replayed.answer,
        "changed": list(replayed.changed),
        **replayed.comparison.to_json(),
    }
    run.write("replay", {"schema": "hidl.replay/1", **document})
    return document


def choose_site(plan: Plan, name: str | None) -> Site:
    """Return the site with this name (default: the run's site if it is known here, or else the detected site)."""
    known = any(entry.name == plan.site for entry in list_all("site"))
    return load_site(name or (plan.site if known else None))


def _filled(data: bytes, words: Mapping[str, str]) -> bytes:
    """Return a JSON document with redacted values filled in. Damaged documents are returned unchanged."""
    try:
        return json.dumps(fill(json.loads(data.decode()), words)).encode()
    except (ValueError, RecursionError):
        return data


def _of_study(plan: Plan, per_node: set[int]) -> int | None:
    """Return the ranks per node in a study over nodes, or None for a study over ranks on one node."""
    return per_node.pop() if plan.unit == "nodes" and len(per_node) == 1 else None


def _axes(points: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """Return the values of each parameter that the sweep varies, in order."""
    axes: dict[str, list[object]] = {}
    for point in points:
        for name, value in point.items():
            values = axes.setdefault(name, [])
            if value not in values:
                values.append(value)
    return axes


def _input_problem(file: Path, expected: str) -> str | None:
    if not expected:
        return "changed between the run and its capsule, so the original content is unknown"
    try:
        if not file.is_file():
            return "not found"
        return None if sha256(file) == expected else "content differs"
    except OSError as error:
        return str(error.strerror)


# Create a run's capsule.


#: Maximum number of bytes that a capsule contains from the end of each log. It begins at a line.
LOG_BYTES = 256 << 10
#: Bytes before them that may contain the name of a secret after it.
_CONTEXT = 64 << 10


def capsule_of(run: Run) -> Capsule:
    """Create a capsule from a run that has metrics. Secrets are omitted, because capsules are meant to be shared.

    Raises ``MissingPrecondition`` if the run has no metrics or its lockfile is gone.
    """
    plan = plan_of(run)
    if run.document("metrics") is None:
        raise MissingPrecondition(
            f"run {run.id} has no metrics: it has failed, or has no verdict yet",
            hint=f"check it with: hidl status {run.id}",
        )
    if plan.container is not None:
        raise MissingPrecondition(
            f"run {run.id} used the image {plan.container.image}, which has no lockfile",
            hint="keep the image and the command line instead",
        )
    if plan.user_environment is not None:
        raise MissingPrecondition(
            f"run {run.id} used the environment {plan.user_environment.directory}, which has no lockfile",
            hint="run it in a stack with your packages; to make one, run: hidl install STACK --with PACKAGE --as NAME",
        )
    lock, text = _lock(run, plan)
    secrets = Secrets(named=True).learn_environment()
    members = _read_members(run, plan, secrets)
    _require_visible_names(plan, secrets)
    content = text.decode(errors="surrogateescape")
    if secrets.hide(content) != content:
        raise MissingPrecondition(
            f"lockfile {lock.filename} of run {run.id} contains a secret, and removing it would change the hash",
            hint="remove users and passwords from the stack's URLs, then install and run it again",
        )
    members["lock.txt"] = text
    inputs = tuple(replace(each, path=secrets.hide(each.path, "inputs")) for each in _inputs(run, plan))
    capsule = Capsule(
        run=plan.run,
        hidl=plan.hidl,
        stack=plan.stack,
        lock_name=lock.filename,
        packages={package.name: package.version for package in lock.packages},
        inputs=inputs,
        members=members,
        hidden=tuple(Hidden(name, tuple(places)) for name, places in secrets.places.items()),
    )
    _read_back(capsule)
    return capsule


def _read_members(run: Run, plan: Plan, secrets: Secrets) -> dict[str, bytes]:
    """Return the capsule's members, without the lockfile and without secrets."""
    documents: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name in RUN_DOCUMENTS:
        file = run.directory / name
        if not file.exists():
            continue
        if name.endswith(".json"):
            documents[f"run/{name}"] = run.document(name.removesuffix(".json"))
        else:
            data = read_end(file, LOG_BYTES + _CONTEXT) if name.endswith(".log") else file.read_bytes()
            texts[f"run/{name}"] = data.decode(errors="surrogateescape")
    for name, load in (("stack", load_stack), ("site", load_site)):
        documents[f"{name}.yaml"] = run.document(name) or _today(load(getattr(plan, name)))
    secrets.learn(*documents.values())
    for name, text in texts.items():
        if name.endswith(".log"):
            secrets.learn_log(run.directory / Path(name).name)
        else:
            secrets.learn_output(text)
    members = {name: _dump(name, secrets.hide_document(each, f"{name}: ")) for name, each in documents.items()}
    for name, text in texts.items():
        clean = secrets.hide(text, name)
        # A program may print a secret that is only recognizable from the user's environment.
        is_log = name.endswith(".log")
        data = (shown(clean) if is_log else clean).encode(errors="surrogateescape")
        members[name] = last_lines(data, LOG_BYTES) if is_log else data
    for name, places in [*secrets.places.items()]:
        left = [each for each in places if each not in texts or f"{HIDDEN}{name}{HIDDEN}".encode() in members[each]]
        secrets.places[name] = left
        if not left:
            del secrets.places[name]
    return members


def _require_visible_names(plan: Plan, secrets: Secrets) -> None:
    """Raise ``UsageError`` if a secret is also part of a name that a replay requires."""
    names = {"run": plan.run, "workload": plan.workload.name, "stack": plan.stack, "site": plan.site}
    for kind, name in names.items():
        if hidden := names_in(secrets.hide(name)):
            raise UsageError(
                f"the capsule of run {plan.run} cannot hide {hidden[0]}: the {kind}'s name contains the same word",
                hint="use a secret that is not an ordinary word, and run it again; or rename the program",
            )


def keeps_sources(run: Run) -> bool:
    """Return whether the run's directory contains copies of its site and its stack's recipe.

    Runs made with hidl 0.1 did not, so their capsules contain the current versions of both.
    """
    return run.document("stack") is not None


def _today(model: Stack | Site) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"extends"})


def _dump(name: str, document: Any) -> bytes:
    if name.endswith(".yaml"):
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
    return f"{json.dumps(document, indent=2, ensure_ascii=False)}\n".encode()


def _read_back(capsule: Capsule) -> None:
    """Read the capsule in the same way as a replay. Raises ``HidlError`` if a replay could not read it."""
    try:
        with unpacked(parse(capsule.to_bytes())) as original:
            site = original.file(f"{original.plan.site}.yaml")
            write_text(site, capsule.text("site.yaml"))
            valid(examine(SITE_RULES, at_path("site", site)))
            for name in capsule.members:
                if name.endswith(".json"):
                    original.run.document(Path(name).stem)
    except InvalidInput as error:
        message = "\n".join(
            [f"cannot read the capsule back: {error.message}", *(each.message for each in error.problems)]
        )
        if capsule.hidden:
            names = ", ".join(each.name for each in capsule.hidden)
            raise UsageError(
                f"{message}\nredacted values: {names}",
                hint="use secrets that are not ordinary words, because every occurrence of a secret is hidden",
            ) from error
        raise HidlError(message, hint="report this as a bug") from error


def _lock(run: Run, plan: Plan) -> tuple[Locked, bytes]:
    """Return the lockfile that the run's stack was installed from, and its bytes."""
    found = installation.at(Path(plan.prefix))
    files = [Path(plan.prefix, "lock.txt")]
    if found is not None:
        files.append(Path(found.manifest["lock"]["file"]))
    for file in files:
        try:
            data = file.read_bytes()
            lock = read_lock(file)
        except (OSError, HidlError):
            continue
        if lock.digest == plan.lock:
            return lock, data
    raise MissingPrecondition(
        f"lockfile {plan.lock[:12]} of run {run.id} not found in {' or '.join(map(str, files))}",
        hint=f"install the stack (hidl install {plan.stack}), and repeat the run",
    )


def _inputs(run: Run, plan: Plan) -> Iterator[Input]:
    """Yield the input files as they were when the run was submitted.

    A file is ``modified`` if it has changed since then. In that case, its hash is the recorded one, or empty if none
    was recorded.
    """
    recorded = (run.document("inputs") or {}).get("files")
    if recorded is None:  # run by hidl 0.1: a replaced file may keep its mtime, but not its ctime
        planned = instant(plan.created).timestamp()
        for file in input_files(plan):
            status = file.stat()
            modified = max(status.st_mtime, status.st_ctime) > planned
            yield Input(str(file), status.st_size, "" if modified else sha256(file), modified)
        return
    for path, known in recorded.items():
        unchanged = is_unchanged(Path(path), known)
        digest = known.get("sha256") or (sha256(Path(path)) if unchanged else "")
        yield Input(path, known["size"], digest, not unchanged)
