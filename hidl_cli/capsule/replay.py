"""Run again what a capsule holds: its stack by its lock, its plan as a request, its numbers against the new ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.analysis.changes.compare import Comparison, compare
from hidl_cli.capsule.capsule import Capsule, Input
from hidl_cli.capsule.locks import read_lock
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, InvalidInput, MissingPrecondition, UsageError
from hidl_cli.inputs.load import examine, valid
from hidl_cli.inputs.overlay import at_path, list_all
from hidl_cli.launch.allocation import Asked
from hidl_cli.launch.library import OF_THE_STACK
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.plan.parameters import matrix_word
from hidl_cli.plan.prepare import RunRequest
from hidl_cli.record.run import Run
from hidl_cli.redaction import fill, names_in
from hidl_cli.runs.provenance import Provenance, differences
from hidl_cli.schedulers.attached import build_command
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.builds.sources import sha256
from hidl_cli.stack.checks import RULES
from hidl_cli.stack.install import draft
from hidl_cli.stack.order import Order
from hidl_cli.stack.schema import Stack
from hidl_cli.stack.target import site_as_for
from hidl_cli.store.extract import samples_of

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
                f"{each.measure.metric} on {each.measure.ranks} rank(s) {each.shift:+.1%}" for each in differing
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
