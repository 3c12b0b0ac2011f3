"""The file of a capsule: a zip archive of the run's documents, its lock, its stack and its site.

::

    capsule.json                       what it holds, with the SHA-256 of every other member; versions; inputs
    run/plan.json  run/job.sh  ...     the run's own documents
    run/stdout.log  run/stderr.log     the end of what it printed
    lock.txt                           exact versions and hashes of its stack
    stack.yaml  site.yaml              the files with all that they extend

A capsule may come from a stranger: its members are named here, its size is limited, and nothing of it is unpacked to a
place that it chooses.
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
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, InvalidInput, MissingPrecondition, Problem, UsageError
from hidl_cli.inputs.check import FileName, Name
from hidl_cli.inputs.load import examine, valid
from hidl_cli.inputs.overlay import at_path, list_all
from hidl_cli.launch.library import OF_THE_STACK
from hidl_cli.launch.placement import Asked
from hidl_cli.plan.input_files import input_files, is_unchanged
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.plan.parameters import matrix_word
from hidl_cli.plan.prepare import RunRequest
from hidl_cli.record.run import Run
from hidl_cli.redaction import Secrets, fill, names_in, shown
from hidl_cli.runs.verifying import Provenance, differences
from hidl_cli.schedulers.attached import build_command
from hidl_cli.site.checks import RULES as RULES_collect
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack import lock as wheels
from hidl_cli.stack.builds.sources import sha256
from hidl_cli.stack.checks import RULES, load_stack
from hidl_cli.stack.install import draft
from hidl_cli.stack.lock import Locked
from hidl_cli.stack.order import Order
from hidl_cli.stack.providers.spack import lock as spack
from hidl_cli.stack.schema import Stack
from hidl_cli.stack.target import site_as_for
from hidl_cli.store.extract import samples_of

SCHEMA = "hidl.capsule/1"
SUFFIX = ".capsule"

#: The documents of a run that a capsule holds; it cannot do without the first three.
OF_THE_RUN = ("plan.json", "status.json", "metrics.json", "job.sh", "verdict.json", "hosts", "stdout.log", "stderr.log")
_NEEDED = ("run/plan.json", "run/status.json", "run/metrics.json", "lock.txt", "stack.yaml", "site.yaml")
_KNOWN = frozenset({*(f"run/{name}" for name in OF_THE_RUN), *_NEEDED})
_INDEX = "capsule.json"

#: Bytes of a member, and of all; a plan with thousands of steps takes some megabytes.
_MOST = 32 << 20
_MOST_OF_ALL = 64 << 20
#: The earliest time that a zip archive can hold: the same run makes the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Input:
    """A file of the user's that the run read, as it was when the run was submitted.

    ``modified``: it had changed when the capsule was made; ``sha256`` is "" if the run's content is then not known.
    """

    path: str
    size: int
    sha256: str
    modified: bool = False


@dataclass(frozen=True)
class Hidden:
    """A hidden word: ``***NAME***`` in the members, at ``places`` such as ``run/plan.json: parameters.token``."""

    name: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Capsule:
    """What a run was. ``lock_name`` is the name that the lock needs to be found, ``members`` the files by name.

    ``hidden``: the words that were secrets; None in a capsule of hidl 0.1, which did not list them. ``digest``: the
    SHA-256 of the whole file.
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
        """Return a member as text; ``InvalidInput`` unless it is UTF-8."""
        try:
            return self.members[member].decode()
        except UnicodeDecodeError as error:
            raise _invalid(f"{member} is not UTF-8 text") from error

    def to_bytes(self) -> bytes:
        """Return the file; the same capsule gives the same bytes."""
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
    """Read a capsule; ``UsageError`` if there is no such file, ``InvalidInput`` with all that is wrong with it."""
    try:
        if file.stat().st_size > _MOST_OF_ALL:
            raise _invalid(f"larger than {_MOST_OF_ALL >> 20} MiB")
        whole = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="hidl capsule RUN makes one") from error
    try:
        return parse(whole)
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error.message}", problems=error.problems, hint=error.hint) from error


def parse(whole: bytes) -> Capsule:
    """Read a capsule from its bytes; ``InvalidInput`` with all that is wrong with it."""
    members = _members(whole)
    index = _index(members.pop(_INDEX, b""))
    missing, unlisted = {*index.members, *_NEEDED} - {*members}, {*members} - {*index.members}
    problems = [Problem(f"{name} is missing", "a whole capsule") for name in sorted(missing)]
    problems += [Problem(f"{name} is not listed in {_INDEX}", "a whole capsule") for name in sorted(unlisted)]
    problems += [
        Problem(f"{name} has changed since the capsule was made", f"SHA-256 {index.members[name]}")
        for name, data in members.items()
        if name in index.members and hashlib.sha256(data).hexdigest() != index.members[name]
    ]
    if problems:
        raise InvalidInput("not a whole capsule", problems=problems, hint="copy it again, or make a new one")
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
    """Return the archive's members; no more is unpacked than a capsule may hold, whatever the archive says."""
    members: dict[str, bytes] = {}
    left = _MOST_OF_ALL
    try:
        with zipfile.ZipFile(BytesIO(whole)) as archive:
            for entry in archive.infolist():
                if entry.filename not in _KNOWN and entry.filename != _INDEX:
                    raise _invalid(f"unknown member {entry.filename[:80]!r}")
                if entry.filename in members:
                    raise _invalid(f"two members {entry.filename}")
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
                    raise _invalid(f"member {entry.filename} is encrypted, or compressed by an unknown method")
                with archive.open(entry) as member:
                    data = member.read(min(_MOST, left) + 1)
                left -= len(data)
                if len(data) > _MOST or left < 0:
                    raise _invalid(f"member {entry.filename} is too large")
                members[entry.filename] = data
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, RuntimeError) as error:
        raise _invalid(f"not a capsule: {error}") from error
    return members


def _index(data: bytes) -> _Index:
    try:
        document = json.loads(data.decode())
        if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
            raise _invalid(f"{_INDEX} is not a document of schema {SCHEMA}")
        return TypeAdapter(_Index).validate_python(document)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _invalid(f"{_INDEX} is not JSON") from error
    except ValidationError as error:
        problems = [Problem(each["msg"], "see hidl.capsule/1", path=each["loc"]) for each in error.errors()]
        raise InvalidInput(
            f"{_INDEX} is invalid", problems=problems, hint="make a new one: hidl capsule RUN"
        ) from error


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(message, hint="hidl capsule RUN makes one")


# The locks of all providers, read by what is in them.


def read_lock(file: Path) -> Locked:
    """Read a lock of wheels or of Spack; ``InvalidInput`` if it is neither, ``OSError`` if it cannot be read."""
    with file.open("rb") as content:
        is_json = content.read(64).lstrip().startswith(b"{")
    return spack.read(file) if is_json else wheels.read(file)


# Run again what a capsule holds: its stack by its lock, its plan as a request, its numbers against the new ones.


#: Below the root of a site's installations: what was installed for replays alone.
ROOT = "replays"


@dataclass(frozen=True)
class Original:
    """What a capsule holds, read and checked: the run, its plan, and its stack.

    ``given``: the names of the hidden words in whose place there are words of the user's; ``inputs``: with these words
    in their paths.
    """

    capsule: Capsule
    run: Run
    plan: Plan
    stack: Stack
    given: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()

    def file(self, member: str) -> Path:
        """Return the unpacked file of a member."""
        return self.run.directory.parent / member

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of hidden words that the run needs, and that were not given; "" for one without a name."""
        words = needed_words(self.capsule)
        return tuple(name for name in words if name not in self.given)

    @property
    def replaced(self) -> tuple[str, ...]:
        """What became of each hidden word, in words."""
        return tuple(f"hidden word {name}: not in the capsule → as given" for name in self.given)

    @property
    def provenance(self) -> Provenance:
        """Where the numbers of the run come from."""
        return Provenance(self.plan, self.run.status().hosts, self.capsule.packages)


@dataclass(frozen=True)
class Replayed:
    """A replay against its original: the comparison, and what differs between the two runs."""

    comparison: Comparison
    changed: tuple[str, ...]

    @property
    def answer(self) -> str:
        """The answer in one line: same within noise, or each metric that differs and by how much."""
        every = self.comparison.differences
        differing = [each for each in every if each.outcome in ("worse", "better", "different")]
        if differing:
            each_one = (
                f"{each.measure.metric}{each.measure.which} on {each.measure.ranks} rank(s) {each.shift:+.1%}"
                for each in differing
            )
            return "differs: " + "; ".join(each_one)
        return "inconclusive" if self.comparison.outcome == "inconclusive" else "same within noise"


def needed_words(capsule: Capsule) -> tuple[str, ...]:
    """Return the names of the hidden words that the run of a capsule needs; "" for one without a name."""
    found = names_in(capsule.text("run/plan.json") + capsule.text("stack.yaml"))
    listed = None if capsule.hidden is None else {each.name for each in capsule.hidden}
    return tuple(name for name in found if listed is None or name in listed)


def words_for(capsules: Sequence[Capsule], assignments: Sequence[str]) -> dict[str, str]:
    """Return the values of the hidden words that the runs of the capsules need, as far as the user gives them.

    ``assignments`` have the form ``NAME=VALUE``; a variable of the environment serves for a name without any.
    Raises ``UsageError`` for a name that no capsule hides.
    """
    needed = dict.fromkeys(name for capsule in capsules for name in needed_words(capsule) if name)
    words = {name: os.environ[name] for name in needed if os.environ.get(name)}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or name.upper() not in needed:
            raise UsageError(
                f"invalid --set {name}: " + ("expected NAME=VALUE" if not equals else "no word of that name is hidden"),
                hint=f"hidden words that the run needs: {', '.join(needed) or 'none'}",
            )
        words[name.upper()] = value
    return words


def require_words(original: Original) -> None:
    """Raise ``MissingPrecondition`` if the run needs hidden words that were not given."""
    missing = original.missing
    if "" in missing or (missing and original.capsule.hidden is None):
        raise MissingPrecondition(
            f"the capsule of run {original.plan.run} hides words that the run needs, and does not name them",
            hint=f"make a new one where the run is: hidl capsule {original.plan.run}",
        )
    if missing:
        raise MissingPrecondition(
            f"the capsule of run {original.plan.run} hides {len(missing)} word(s) that the run needs: "
            + ", ".join(missing),
            hint=" ".join(f"--set {name}=VALUE" for name in missing) + ", or variables of these names",
        )


@contextmanager
def unpacked(capsule: Capsule, words: Mapping[str, str] | None = None) -> Iterator[Original]:
    """Give the run of the capsule in a temporary directory; ``words``: the values of hidden words, by name.

    Raises ``InvalidInput`` with every problem of its plan, its stack or its metrics.
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
                f"this hidl cannot read the run of the capsule, which hidl {capsule.hidl!r} made: {error.message}"
            ) from error
        if read_lock(Path(directory, "lock.txt")).digest != plan.lock:
            raise InvalidInput(
                "the lock of the capsule is not the one that the run's plan names", hint="make a new one"
            )
        named = Path(directory, "stacks", f"{capsule.stack}.yaml")
        write_text(named, capsule.text("stack.yaml"))
        stack = valid(examine(RULES, at_path("stack", named)))
        if words:
            stack = Stack.model_validate(fill(stack.model_dump(mode="json", by_alias=True), words))
        given = tuple(name for name in needed_words(capsule) if name in (words or {}))
        inputs = tuple(replace(each, path=fill(each.path, words or {})) for each in capsule.inputs)
        yield Original(capsule, run, plan, stack, given, inputs)


def order_for(
    original: Original, site: Site, prefix: str | None, directory: Path, job: Asked, *, offline: bool = False
) -> Order:
    """Return the order that installs the capsule's stack by its lock, which ``directory`` then holds.

    Where the stack in use has this very lock, nothing is to be installed; else it goes to a place of its own, and the
    stack in use stays. ``job`` are the options of a job that builds.

    Raises ``MissingPrecondition`` if the lock does not serve here.
    """
    capsule, stack = original.capsule, original.stack
    lock = directory / "locks" / capsule.lock_name
    write_text(lock, capsule.text("lock.txt"))
    site = site_as_for(site, getattr(read_lock(lock), "accelerator", None))  # a lock of Spack names none
    root = installation.root_of(site, stack.name, prefix)
    attached = build_command(site, os.environ, job) if site.install.provider == "spack" else ()
    order = Order(site, stack, root, locked=True, offline=offline, mirror=directory, attached=attached)
    try:
        in_use = installation.find(site, stack.name, root=root).lock == original.plan.lock
    except MissingPrecondition:
        in_use = False
    if not in_use:
        order = replace(order, root=(root if prefix else installation.own_root()) / ROOT)
    choice = draft(replace(order, locked=False)).choice
    if choice.lock is None or choice.lock.digest != original.plan.lock:
        reasons = "; ".join(each.reason for each in choice.passed_over if each.file.is_relative_to(directory))
        raise MissingPrecondition(
            f"the lock of the capsule, {capsule.lock_name}, does not serve here"
            + (
                f": {reasons}"
                if reasons
                else f": stack {stack.name} on site {site.name} has another Python or platform"
            ),
            hint=f"hidl run {original.plan.workload.name} runs the same workload in the stack of this machine",
        )
    return order


def request_of(original: Original, site: Site, prefix: str | None, asked: Asked, repeat: int | None) -> RunRequest:
    """Return the request that gives the capsule's plan on ``site``.

    On the site that the run was on, its partition, launcher and MPI library are asked for too; elsewhere, those of the
    other site serve. ``asked``: what the user says of the job; ``repeat``: of the repetitions (None: as then).
    """
    plan = original.plan
    here = plan.site == site.name
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
        nodes=None if plan.is_study else first.nodes,
        ranks_per_node=first.ranks_per_node if len(per_node) == 1 and not plan.is_study else _of_study(plan, per_node),
        threads=threads.pop() if len(threads) == 1 else None,
        assignments=[f"{name}={value}" for name, value in fixed.items()],
        matrix=[matrix_word(name, values) for name, values in axes.items()],
        tuning=[f"{each.name}={each.value}" for each in plan.tuning if each.origin == "--tune"],
        stack=plan.stack,
        scale=f"{plan.unit}={','.join(map(str, sizes))}" if plan.is_study else None,
        repeat=repeat or plan.repetitions,
        target=plan.target if plan.is_study else None,
        baseline=plan.baseline if plan.is_study else None,
        until_settled=plan.until_settled,
        precision=plan.precision if plan.is_study else None,
        launcher=plan.launcher if here else None,
        mpi=(OF_THE_STACK if plan.mpi_of_the_stack else plan.mpi.name) if here else None,
        device=plan.device,
        stdin=stdin_of(original),
        prefix=prefix,
        asked=replace(asked, partition=asked.partition or plan.partition) if here else asked,
    )


def stdin_of(original: Original) -> str | None:
    """Return the absolute path of the run's standard input, for a copy in its directory where that was; None: none."""
    stdin = original.plan.stdin
    if stdin is None or Path(stdin).is_absolute():
        return stdin
    paths_ = [each.path for each in original.inputs if Path(each.path).parts[-2:] == (original.plan.run, stdin)]
    return paths_[0] if paths_ else stdin


def check_inputs(original: Original) -> None:
    """Raise ``MissingPrecondition`` with every input of the run that is not there, or has another content."""
    capsule = original.capsule
    wrong = [(each.path, reason) for each in original.inputs if (reason := _why_wrong(Path(each.path), each.sha256))]
    if wrong:
        raise MissingPrecondition(
            "\n".join(
                [f"{len(wrong)} of {len(capsule.inputs)} inputs are not those of the run:"]
                + [f"  {path}: {reason}" for path, reason in wrong]
            ),
            hint="put them where they were, or run with what is there: --changed-inputs",
        )


def hold_against(original: Original, run: Run, packages: Mapping[str, str], tolerance: float) -> Replayed:
    """Compare the replay ``run`` with its original; ``InvalidInput`` if they have no metric in common."""
    try:
        comparison = compare(samples_of(original.run), samples_of(run), tolerance=tolerance)
    except ValueError as error:
        raise InvalidInput(f"the run and its replay cannot be compared: {error}") from error
    now = Provenance(plan_of(run), run.status().hosts, packages)
    return Replayed(comparison, (*differences(original.provenance, now), *original.replaced))


def keep(original: Original, run: Run, replayed: Replayed) -> dict[str, Any]:
    """Write the answer to ``replay.json`` in the directory of the replay, and return it as plain data."""
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


def machine_for(plan: Plan, name: str | None) -> Site:
    """Return the site of that name; None: the one that the run was on if there is one of its name, else as usual."""
    known = any(entry.name == plan.site for entry in list_all("site"))
    return load_site(name or (plan.site if known else None))


def _filled(data: bytes, words: Mapping[str, str]) -> bytes:
    """Return a JSON document with the values of hidden words; one that is damaged fails where it is read."""
    try:
        return json.dumps(fill(json.loads(data.decode()), words)).encode()
    except (ValueError, RecursionError):
        return data


def _of_study(plan: Plan, per_node: set[int]) -> int | None:
    """Return the ranks per node of a study of nodes; a study of ranks on one node has none."""
    return per_node.pop() if plan.unit == "nodes" and len(per_node) == 1 else None


def _axes(points: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """Return the values of each parameter that a matrix varies, in their order."""
    axes: dict[str, list[object]] = {}
    for point in points:
        for name, value in point.items():
            values = axes.setdefault(name, [])
            if value not in values:
                values.append(value)
    return axes


def _why_wrong(file: Path, expected: str) -> str | None:
    if not expected:
        return "changed between the run and its capsule, which does not know the run's content"
    try:
        if not file.is_file():
            return "not found"
        return None if sha256(file) == expected else "another content"
    except OSError as error:
        return str(error.strerror)


# Make the capsule of a run.


#: Bytes of a log that a capsule keeps: the last.
LOG_BYTES = 256 << 10


def capsule_of(run: Run) -> Capsule:
    """Return the capsule of a run that was measured, without secrets, for it is given to others.

    ``MissingPrecondition`` if it was not, or its lock is gone.
    """
    plan = plan_of(run)
    if run.document("metrics") is None:
        raise MissingPrecondition(
            f"run {run.id} has no metrics: it has not ended well, or was not judged yet", hint=f"hidl status {run.id}"
        )
    if plan.user_environment is not None:
        raise MissingPrecondition(
            f"run {run.id} used the environment {plan.user_environment.directory}, which no lock describes",
            hint="a run in a stack can be repeated by its lock: hidl install STACK --with PACKAGE --as NAME",
        )
    lock, text = _lock(run, plan)
    secrets = Secrets(named=True)
    members = _members_of_collect(run, plan, secrets)
    content = text.decode(errors="surrogateescape")
    if secrets.hide(content) != content:
        raise MissingPrecondition(
            f"the lock {lock.filename} of run {run.id} holds a secret, and its hash protects every byte of it",
            hint="take users and passwords out of the stack's URLs, install it again, and run it again",
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


def _members_of_collect(run: Run, plan: Plan, secrets: Secrets) -> dict[str, bytes]:
    """Return the files of the capsule but for its lock, without secrets."""
    documents: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name in OF_THE_RUN:
        data = _read(run.directory / name)
        if data is None:
            continue
        if name.endswith(".json"):
            documents[f"run/{name}"] = run.document(name.removesuffix(".json"))
        else:
            texts[f"run/{name}"] = data.decode(errors="surrogateescape")
    for name, load in (("stack", load_stack), ("site", load_site)):
        documents[f"{name}.yaml"] = run.document(name) or _today(load(getattr(plan, name)))
    secrets.learn(*documents.values())
    for text in texts.values():
        secrets.learn_output(text)
    members = {name: _dump(name, secrets.hide_document(each, f"{name}: ")) for name, each in documents.items()}
    for name, text in texts.items():
        clean = secrets.hide(text, name)
        # A program may print a secret that only the user's environment tells to be one.
        members[name] = (shown(clean) if name.endswith(".log") else clean).encode(errors="surrogateescape")
    return members


def keeps_sources(run: Run) -> bool:
    """Does the run keep its site and its stack's recipe? Those of hidl 0.1 do not: their capsules hold today's."""
    return run.document("stack") is not None


def _today(model: Stack | Site) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"extends"})


def _dump(name: str, document: Any) -> bytes:
    if name.endswith(".yaml"):
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
    return f"{json.dumps(document, indent=2, ensure_ascii=False)}\n".encode()


def _read_back(capsule: Capsule) -> None:
    """Read the capsule as a replay does; ``HidlError`` if a replay could not."""
    try:
        with unpacked(parse(capsule.to_bytes())) as original:
            site = original.file(f"{original.plan.site}.yaml")
            write_text(site, capsule.text("site.yaml"))
            valid(examine(RULES_collect, at_path("site", site)))
            for name in capsule.members:
                if name.endswith(".json"):
                    original.run.document(Path(name).stem)
    except InvalidInput as error:
        raise HidlError(
            "\n".join(
                [f"the capsule cannot be read back: {error.message}", *(each.message for each in error.problems)]
            ),
            hint="a hidden word may be part of a name, see `hidl run --dry-run`; please report it otherwise",
        ) from error


def _lock(run: Run, plan: Plan) -> tuple[Locked, bytes]:
    """Return the lock that the run's stack was installed from, with its text."""
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
        f"the lock {plan.lock[:12]} of run {run.id} is gone: {' and '.join(map(str, files))} do not hold it",
        hint=f"hidl install {plan.stack}, and run it again",
    )


def _inputs(run: Run, plan: Plan) -> Iterator[Input]:
    """Yield the input files as they were when the run was submitted.

    ``modified``: the file is another one now; its hash is then that of the run's, or "" if it was not recorded.
    """
    recorded = (run.document("inputs") or {}).get("files")
    if recorded is None:  # a run of hidl 0.1: a replaced file keeps its mtime, but its ctime is that of the change
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


def _read(file: Path) -> bytes | None:
    """Return a document of the run, of a log the end; None if it does not exist."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    return data[-LOG_BYTES:] if file.suffix == ".log" else data
