"""The profile of a run: who sent what to whom, who waited, and where the efficiency of a scaling study was lost.

Each rank of a run with ``--profile`` writes a file (``mpitraffic``). After the run, the files of each step are merged
into ``steps/N/profile.json``, and the steps are summarized in ``profile.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from hidl_cli.analysis.scaling import Study, from_json
from hidl_cli.analysis.statistics import Interval
from hidl_cli.documents import read_json, write_json
from hidl_cli.errors import HidlError, UsageError
from hidl_cli.plan.launch_plan import Plan, Step
from hidl_cli.record import Run
from hidl_cli.recorder import DIRECTORY
from hidl_workloads import repetitions
from hidl_workloads.phases import INPUT

if TYPE_CHECKING:
    from mpitraffic.profile import Profile

SCHEMA = "hidl.profile/1"
#: Name of the documents for a run and for each of its steps.
NAME = "profile"

#: The causes of lost efficiency in the order in which they are shown; ``rest`` is whatever the profile does not
#: explain.
CAUSES: Mapping[str, str] = {
    "computing": "more or slower computing",
    "input": "reading the input",
    "imbalance": "imbalance: waiting for the slowest rank",
    "waiting": "waiting for other ranks in turn",
    "transfer": "transfer",
    "packing": "packing and copies for an exchange",
    "bubble": "bubble that hyparflow's plan predicted",
    "rest": "rest",
}


@dataclass(frozen=True)
class Times:
    """The time of a step in seconds, excluding preparation. The attributes are parts that add up to ``total``.

    Attributes:
        computing: Time that the typical rank spends neither on exchanging data nor on ``input`` or ``packing``.
        input: Time that the typical rank spends on reading data.
        imbalance: Additional time of the slowest rank.
        waiting: Time that the slowest rank spends waiting for others.
        transfer: Time that the slowest rank spends exchanging data without waiting.
        packing: Time that the typical rank spends on copying data for an exchange.
        bubble: Part of the slowest rank's waiting time that hyparflow's plan predicted.
    """

    computing: float
    input: float
    imbalance: float
    waiting: float
    transfer: float
    packing: float = 0.0
    bubble: float = 0.0

    @property
    def total(self) -> float:
        """The sum of the parts, which is the time of the slowest rank."""
        return float(sum(getattr(self, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Loss:
    """The loss of efficiency due to a cause, as a fraction of 1, with its interval over the repetitions."""

    cause: str
    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Waterfall:
    """The losses that explain the efficiency of the step of size ``n``: 1 minus their sum is ``efficiency``."""

    n: int
    efficiency: float
    losses: tuple[Loss, ...]


def times_of(profile: Profile, bubble: float = 0.0) -> Times:
    """Divide the time that a program takes on its slowest rank into parts.

    Args:
        profile: Profile of the program.
        bubble: Seconds of each step in which a rank is planned to wait.
    """
    regions = [each.region for each in profile.ranks]
    outside = [each.outside_ns for each in regions]
    inputs = [each.phases[INPUT].outside_ns if INPUT in each.phases else 0.0 for each in profile.ranks]
    # If there are two ranks, the faster one is the typical one.
    typical = min if len(regions) <= 2 else median
    slowest = max(range(len(regions)), key=outside.__getitem__)
    whole, waited = regions[slowest].ns, min(regions[slowest].wait_ns, regions[slowest].mpi_ns)
    usual, read, packed = typical(outside), typical(inputs), typical([each.packing_ns for each in regions])
    planned = min(waited, bubble * 1e9 * regions[slowest].entries)
    imbalance, transfer = outside[slowest] - usual, whole - outside[slowest] - waited
    parts = (usual - read - packed, read, imbalance, waited - planned, transfer, packed, planned)
    return Times(*(each / 1e9 for each in parts))


def waterfalls(study: Study, found: Mapping[tuple[int, int], Sequence[Times]]) -> tuple[Waterfall, ...]:
    """Divide the lost efficiency of each step of a study among its causes.

    Times are compared for the same amount of work: with strong scaling, each rank does half as much work in a step of
    twice the size. The losses due to causes other than ``rest`` are means over the rounds.

    Args:
        study: The study. Its baseline must be one of its own steps rather than earlier runs.
        found: Times by size and round, with several entries for concurrent copies.
    """
    first = study.baseline.n
    rounds = sorted({round_ for n, round_ in found if n == first})
    values = {(each.step, each.round): each.value for each in study.observations if each.kind == "step"}
    steps = []
    for step in study.steps[1:]:
        losses: dict[str, list[float]] = {cause: [] for cause in CAUSES}
        for round_ in rounds:
            if (step.n, round_) not in found:
                continue
            larger = 1.0 if study.kind == "weak" else step.ideal_speedup
            before, after = _mean(found[first, round_]), _mean(found[step.n, round_])
            scale = larger * after.total
            for cause in (cause for cause in CAUSES if cause != "rest"):
                losses[cause].append((larger * getattr(after, cause) - getattr(before, cause)) / scale)
            explained = sum(losses[cause][-1] for cause in CAUSES if cause != "rest")
            if (step.n, round_) in values and (first, round_) in values:
                faster = values[step.n, round_] / values[first, round_]
                speedup = faster if _higher_is_better(study) else 1 / faster
                losses["rest"].append(1 - speedup / step.ideal_speedup - explained)
        if not losses["computing"]:
            continue
        means = {cause: fmean(each) for cause, each in losses.items() if cause != "rest"}
        means["rest"] = 1 - step.efficiency - sum(means.values())
        found_losses = tuple(Loss(cause, means[cause], _interval(losses[cause])) for cause in CAUSES)
        steps.append(Waterfall(step.n, step.efficiency, found_losses))
    return tuple(steps)


def _higher_is_better(study: Study) -> bool:
    """Return whether higher values of the metric are better, inferred from the speed-up of the largest step."""
    return (study.steps[-1].mean > study.baseline.mean) == (study.steps[-1].speedup > 1)


def _mean(several: Sequence[Times]) -> Times:
    names = Times.__dataclass_fields__
    return Times(**{name: fmean(getattr(each, name) for each in several) for name in names})


def keep_profile(run: Run, plan: Plan, study: Study | None = None) -> dict[str, Any] | None:
    """Merge the recordings of an ended run's ranks, unless they are already merged, and return ``profile.json``.

    A failure does not fail the run but becomes part of the document. Returns None if the run was not recorded.
    """
    if plan.profile is None:
        return None
    document = _kept(run) or _merged(run, plan, study)
    with suppress(OSError):  # if the disk is full, the profile is merged again when it is shown
        run.write(NAME, document)
    return document


def read_profile(run: Run, plan: Plan) -> dict[str, Any]:
    """Return the document ``profile.json`` of a run, or what the ranks have recorded so far if the run has not ended.

    Raises ``UsageError`` if the run was not recorded.
    """
    if plan.profile is None:
        raise UsageError(f"run {run.id} was not recorded", hint="to record one, use hidl run --profile")
    document = _kept(run)
    if document is None:
        judged = (run.document("verdict") or {}).get("study")
        document = _merged(run, plan, from_json(judged) if judged else None)
    return document


def _kept(run: Run) -> dict[str, Any] | None:
    with suppress(HidlError):  # damaged by a full disk
        document = run.document(NAME)
        if document and (document.get("steps") or document.get("problem")):
            return document
    return None


def _merged(run: Run, plan: Plan, study: Study | None) -> dict[str, Any]:
    steps, times = [], dict[tuple[int, int], list[Times]]()
    for number, step in enumerate(plan.steps, start=1):
        for place, about in _places(run, plan, number, step):
            if not (place / DIRECTORY).is_dir():
                continue
            entry, found = _merge(place, about, plan.summary(step))
            steps.append({**entry, "file": str((place / f"{NAME}.json").relative_to(run.directory))})
            if found and (not step.copies or study is None or study.against == "copies"):
                times.setdefault((step.size, step.repetition), []).append(found)
    falls: tuple[Waterfall, ...] = ()
    problem = None if steps else "no rank wrote a file: the program does not use MPI, or ended before MPI started"
    if study is not None and not plan.workload.overhead_ranks and study.against != "history":
        falls = waterfalls(study, times)
    return {
        "schema": SCHEMA,
        "run": run.id,
        "problem": problem,
        "steps": steps,
        "waterfalls": [waterfall_document(each) for each in falls],
    }


def _places(run: Run, plan: Plan, number: int, step: Step) -> Iterator[tuple[Path, dict[str, Any]]]:
    place = run.directory / "steps" / str(number)
    about: dict[str, Any] = {
        "step": number,
        plan.unit: step.size,
        "ranks": step.placement.ranks,
        "repetition": step.repetition,
        "parameters": dict(step.point),
    }
    if not step.copies:
        yield place, about
    for copy in range(1, step.copies + 1):
        yield place / "copies" / str(copy), {**about, "copy": copy}


def _merge(place: Path, about: dict[str, Any], command: str) -> tuple[dict[str, Any], Times | None]:
    """Merge the files of a step and write its ``profile.json``; return the step's summary and times."""
    from mpitraffic import profile
    from mpitraffic.errors import TrafficError

    try:
        found = profile.load(place / DIRECTORY)
        found.command = command
        document = profile.as_document(found)
        with suppress(OSError):
            write_json(place / f"{NAME}.json", {"schema": "hidl.step-profile/1", **about, **document})
        times = times_of(found, _planned_bubble(place))
    except (TrafficError, OSError, ValueError, ArithmeticError) as error:
        return {**about, "problem": str(error)}, None
    wall = sum(each.wall_ns for each in found.ranks) or 1.0
    return {
        **about,
        "problem": None,
        "missing_ranks": found.missing,
        "unfinished_ranks": [each.rank for each in found.ranks if not each.finalized],
        "mpi_share": sum(each.mpi_ns for each in found.ranks) / wall,
        "waiting_share": sum(each.wait_ns for each in found.ranks) / wall,
        "waiting": found.waiting,
        "imbalance": times.imbalance / times.total if times.total > 0 else 0.0,
        "seconds": {**{name: getattr(times, name) for name in Times.__dataclass_fields__}, "total": times.total},
        "slow_ranks": document["slow_ranks"],
    }, times


def _planned_bubble(place: Path) -> float:
    """Return the seconds per step that the busiest partition waits in the pipeline, as predicted by hyparflow."""
    with suppress(OSError, ValueError, TypeError, KeyError):  # programs other than hyparflow lack these metrics
        found = {each["name"]: each for each in read_json(place / "metrics.json")["metrics"]}
        return min(map(float, found["predicted_bubble"]["samples"])) * float(found["predicted_step_time"]["value"])
    return 0.0


def waterfall_document(fall: Waterfall) -> dict[str, Any]:
    """Return a waterfall as plain data."""
    return {
        "n": fall.n,
        "efficiency": fall.efficiency,
        "losses": [
            {
                "cause": loss.cause,
                "value": loss.value,
                "interval": loss.interval and [loss.interval.low, loss.interval.high],
            }
            for loss in fall.losses
        ],
    }


def metrics_of(step: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metrics in a step's summary that become part of the results history."""
    found = {"mpi_share": step["mpi_share"], "compute_imbalance": step["imbalance"]}
    return {name: {"value": value, "unit": "fraction", "samples": [value]} for name, value in found.items()}


def find_step(run: Run, document: Mapping[str, Any], number: int | None) -> dict[str, Any]:
    """Return the summary of a step (default: the last step of the largest size).

    Raises:
        UsageError: The step does not exist or has no profile.
    """
    recorded = [each for each in document["steps"] if not each["problem"]]
    chosen = [each for each in recorded if number in (None, each["step"])]
    if not chosen:
        known = ", ".join(str(each) for each in dict.fromkeys(each["step"] for each in recorded))
        problem = next((each["problem"] for each in document["steps"] if each["problem"]), document["problem"])
        raise UsageError(
            f"run {run.id} has no profile{f' for step {number}' if number else ''}: {problem or 'not recorded'}",
            hint=f"steps with a profile: {known}" if known else None,
        )
    return max(chosen, key=lambda each: (each["ranks"], each["step"]))


def step_document(run: Run, plan: Plan, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged profile of a step."""
    with suppress(OSError, ValueError):  # it could not be written if the disk was full
        found: dict[str, Any] = read_json(run.directory / step["file"])
        return found
    from mpitraffic.profile import as_document

    return as_document(_load(run, plan, step))


def describe_traffic(run: Run, plan: Plan, step: Mapping[str, Any], *, matrix: bool) -> str:
    """Return a step's tables of calls and ranks, or the matrix of its traffic."""
    from mpitraffic import summary

    found = _load(run, plan, step)
    return summary.matrix(found) if matrix else summary.summary(found)


def export_profile(run: Run, plan: Plan, step: Mapping[str, Any], form: str, output: Path) -> str:
    """Write a step's table, trace or OTF2 archive, and return a description of what was written."""
    from mpitraffic import export
    from mpitraffic.errors import TrafficError

    try:
        if form in ("trace", "otf2"):
            write = export.write_trace if form == "trace" else export.write_otf2
            return f"{write(_directory(run, step), output)} events"
        export.write_table(_load(run, plan, step), form, output)
    except TrafficError as error:
        raise UsageError(f"cannot export the profile: {error}", hint=error.hint or None) from error
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}", hint="choose another --output") from error
    return f"table of {form}"


def _directory(run: Run, step: Mapping[str, Any]) -> Path:
    return Path(run.directory, step["file"]).parent / DIRECTORY


def _load(run: Run, plan: Plan, step: Mapping[str, Any]) -> Profile:
    from mpitraffic import profile
    from mpitraffic.errors import TrafficError

    try:
        found = profile.load(_directory(run, step))
    except TrafficError as error:
        raise UsageError(f"the profile of run {run.id} cannot be read: {error}") from error
    # The command line that the ranks recorded is not used, because it ends after 255 bytes and may contain secrets.
    found.command = plan.summary(plan.steps[step["step"] - 1])
    return found


def describe_slow(step: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each slow rank of a step, with the phase in which it is slow."""
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for each in step["slow_ranks"]:
        by_rank.setdefault(each["rank"], []).append(each)
    return [_describe_slow(each) for each in by_rank.values()]


def _describe_slow(found: Sequence[Mapping[str, Any]]) -> str:
    """Describe a slow rank by the shortest phase that explains at least half of its additional time."""
    most = max(each["excess_seconds"] for each in found)
    phases = [each for each in found if each["phase"] and each["excess_seconds"] >= most / 2]
    cause = min(phases or found, key=lambda each: each["phase_seconds"])
    where = f" in {cause['phase']}" if cause["phase"] else ""
    return (
        f"rank {cause['rank']} on {cause['host']} is slow{where}: {cause['excess_seconds']:.3g} s longer than the "
        f"others ({cause['share']:.1%} of the time)"
    )


def present_losses(fall: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the losses of a waterfall, omitting causes that do not occur in the program, such as input."""
    return [loss for loss in fall["losses"] if loss["value"] or loss["interval"]]


def describe_waterfall(fall: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a waterfall chart, from an efficiency of 1 down to the measured efficiency."""
    yield f"efficiency at {fall['n']}: {fall['efficiency']:.3f}; lost to"
    for loss in present_losses(fall):
        interval = loss["interval"]
        within = f" ({interval[0]:+.3f} to {interval[1]:+.3f})" if interval else ""
        yield f"  {loss['value']:+.3f}{within}  {CAUSES[loss['cause']]}"


def _interval(values: Sequence[float]) -> Interval | None:
    bounds = repetitions.interval(values)
    return None if bounds is None else Interval(bounds.low, bounds.high)
