"""Read the metrics of a run's steps, and their energy as measured by the program and by Slurm's accounting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from hidl_cli.documents import read_json
from hidl_cli.errors import HidlError, MetricMissing
from hidl_cli.plan.launch_plan import OUTPUT, TIMING, Plan, Step
from hidl_cli.plan.workload import TIMES, Metric, names_of
from hidl_cli.record import Run
from hidl_cli.runs.parsers import parse
from hidl_cli.runs.parsers.patterns import read_patterns
from hidl_cli.schedulers import slurm
from hidl_cli.schedulers.backend import read_reference
from hidl_workloads.enough import is_disturbed

SCHEMA = "hidl.metrics/1"
_ALWAYS = ("value", "unit", "samples")
_KEYS = ("sizes", "ranks", "pairs")  # optional sample labels


def read_metrics(path: Path, promised: Mapping[str, Metric], *, ranks: int) -> dict[str, dict[str, Any]]:
    """Read a metrics document, and return the ``value``, ``unit`` and ``samples`` of each metric by name.

    The values are numbers, or text for checksums. The optional lists ``sizes``, ``ranks`` and ``pairs`` contain each
    sample's message size, rank, or pair of nodes.

    Args:
        path: File to read.
        promised: The metrics that the workload declares.
        ranks: Number of ranks.

    Raises:
        MetricMissing: The document is missing, invalid or from another number of ranks, lacks a required metric, or
            contains an invalid value, a wrong unit, or a wrong number of samples.
    """
    try:
        document = read_json(path)
    except FileNotFoundError:
        if not any(metric.required for metric in promised.values()):
            return {}
        raise MetricMissing(
            f"the program succeeded but wrote no metrics to {path}",
            hint="rank 0 must write the file named by $HIDL_METRICS; see docs/reference/metrics.md",
        ) from None
    except (OSError, ValueError) as error:
        raise MetricMissing(f"the metrics in {path} cannot be read: {error}") from error
    metrics = _by_name(document, path)
    size = document.get("world", {}).get("size") if isinstance(document.get("world"), dict) else None
    if size != ranks:
        raise MetricMissing(f"the metrics in {path} are from {size} rank(s), expected {ranks}")
    return check_metrics(metrics, promised, ranks=ranks, source=path)


def check_metrics(
    metrics: dict[str, dict[str, Any]], promised: Mapping[str, Metric], *, ranks: int, source: Path
) -> dict[str, dict[str, Any]]:
    """Return the metrics read from ``source``; raises ``MetricMissing`` if they differ from the declared ones."""
    for name, metric in promised.items():
        if name in metrics:
            _check(name, metrics[name], metric, ranks, source)
        elif metric.required:
            found = ", ".join(metrics) or "none"
            raise MetricMissing(f"metric {name} is not in {source}", hint=f"found metrics: {found}")
    return metrics


def describe_unequal_ranks(metrics: Mapping[str, dict[str, Any]], promised: Mapping[str, Metric]) -> str | None:
    """Describe a metric that must be equal on all ranks but is not, or return None if there is no such metric."""
    for name, metric in promised.items():
        if metric.equal_on_all_ranks and name in metrics and len(set(metrics[name]["samples"])) > 1:
            samples = metrics[name]["samples"]
            other = next(rank for rank, sample in enumerate(samples) if sample != samples[0])
            return (
                f"{name} differs between ranks (rank 0: {str(samples[0])[:12]}..., rank {other}: "
                f"{str(samples[other])[:12]}...)"
            )
    return None


def _by_name(document: Any, path: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise MetricMissing(f"{path} is not a document with schema {SCHEMA}")
    metrics = document.get("metrics")
    keys = {"name", *_ALWAYS}
    if not isinstance(metrics, list) or not all(isinstance(m, dict) and keys <= m.keys() for m in metrics):
        raise MetricMissing(f"{path}: `metrics` must be a list of objects with name, value, unit and samples")
    for metric in metrics:
        _check_keys(metric, path)
    return {metric["name"]: {key: metric[key] for key in (*_ALWAYS, *_KEYS) if key in metric} for metric in metrics}


def _check_keys(metric: Mapping[str, Any], path: Path) -> None:
    """Require a unique integer (``sizes``, ``ranks``) or a unique pair of names (``pairs``) for each sample."""
    for key in _KEYS:
        if key not in metric:
            continue
        numbers, samples = metric[key], metric["samples"]
        what = "pair of names" if key == "pairs" else "whole number"
        fits = isinstance(numbers, list) and all((_is_pair if key == "pairs" else _is_whole)(each) for each in numbers)
        if not fits or not isinstance(samples, list) or not _count_of(numbers) == len(numbers) == len(samples):
            raise MetricMissing(
                f"metric {metric['name']} in {path}: `{key}` must have one unique {what} for each sample"
            )


def _is_whole(number: object) -> bool:
    return type(number) is int and number >= 0


def _is_pair(pair: object) -> bool:
    return (
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair) and pair[0] != pair[1]
    )


def _count_of(numbers: list[Any]) -> int:
    """Count the unique entries, ignoring the order within pairs."""
    return len({tuple(sorted(each)) if isinstance(each, list) else each for each in numbers})


def _check(name: str, found: Mapping[str, Any], promised: Metric, ranks: int, path: Path) -> None:
    if found["unit"] != promised.unit:
        raise MetricMissing(f"metric {name} in {path} has unit {found['unit']!r}, expected {promised.unit!r}")
    samples = found["samples"]
    if not isinstance(samples, list):
        raise MetricMissing(f"metric {name} in {path}: `samples` must be a list")
    if promised.equal_on_all_ranks:
        if len(samples) != ranks or not all(isinstance(sample, (str, int, float)) for sample in samples):
            raise MetricMissing(
                f"metric {name} in {path} has {len(samples)} sample(s), not one for each of {ranks} rank(s)"
            )
        samples = [sample for sample in samples if not isinstance(sample, str)]  # digests
    for value in samples if promised.equal_on_all_ranks else (found["value"], *samples):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise MetricMissing(f"metric {name} in {path} is {value!r}: not a finite number")


#: Document in which a job records after how many repetitions its study was settled.
ENOUGH = "enough"


def count_complete_repetitions(run: Run, plan: Plan) -> int:
    """Return the number of complete repetitions before the first one in which a step lacks its metrics.

    A step whose metrics are read from its output is complete once the next step has started.
    """
    running = run.status().step
    missing = [
        step.repetition
        for number, step in enumerate(plan.steps, start=1)
        if not all(
            place.is_file() and (place.name != OUTPUT or number != running)
            for place in _documents(run.directory / "steps" / str(number), step)
        )
    ]
    return min(missing, default=plan.repetitions + 1) - 1


def _documents(place: Path, step: Step) -> Iterator[Path]:
    name = TIMING if step.timed else "metrics.json" if step.parser is None and not step.patterns else OUTPUT
    yield from (each / name for each in directories(place, step))


def directories(place: Path, step: Step) -> list[Path]:
    """Return the directories that contain a step's metrics: its own, or one for each of its copies."""
    return [place / "copies" / str(copy) for copy in range(1, step.copies + 1)] if step.copies else [place]


def read_steps(run: Run, plan: Plan, rounds: int | None = None) -> list[dict[str, Any]]:
    """Return an entry for each step that ran, or for each of its copies (``copy`` counts from 1).

    An entry contains the step's ``hosts``, its matrix ``parameters``, and ``disturbed`` if another run used the
    machine's cores at the same time. ``rounds`` limits the number of repetitions (default: the number that the job
    recorded, or else the planned one). Raises ``MetricMissing`` if a metric is missing.
    """
    repetitions = rounds or (run.document(ENOUGH) or {}).get("rounds") or plan.repetitions
    return [
        entry
        for number, step in enumerate(plan.steps, start=1)
        if step.repetition <= repetitions
        for entry in _entries(run.directory / "steps" / str(number), plan, step)
    ]


def _entries(place: Path, plan: Plan, step: Step) -> Iterator[dict[str, Any]]:
    about: dict[str, Any] = {plan.unit: step.size, "ranks": step.placement.ranks, "repetition": step.repetition}
    if step.point:
        about["parameters"] = dict(step.point)
    if is_disturbed(place):
        about["disturbed"] = True
    for copy, directory in enumerate(directories(place, step), start=1):
        about_copy = {"copy": copy} if step.copies else {}
        metrics = metrics_of(directory, plan, step)
        yield {**about, **about_copy, "hosts": _hosts(directory), "metrics": metrics, **read_energy(directory)}


def metrics_of(place: Path, plan: Plan, step: Step) -> dict[str, dict[str, Any]]:
    """Return the metrics in the directory of a step or of one of its copies. Raises ``MetricMissing``."""
    promised, ranks = dict(plan.workload.metrics), step.placement.ranks
    if not step.timed:
        return _program_metrics(place, step, promised)
    times = {name: promised.pop(name) for name in TIMES.keys() & promised.keys() - names_of(step.patterns)}
    return {**read_metrics(place / TIMING, times, ranks=ranks), **_program_metrics(place, step, promised)}


def _program_metrics(place: Path, step: Step, promised: Mapping[str, Metric]) -> dict[str, dict[str, Any]]:
    """Read metrics with the step's patterns, and all others with its parser or from the program's metrics document."""
    ranks = step.placement.ranks
    found = read_patterns(step.patterns, promised, place, ranks=ranks) if step.patterns else {}
    check_metrics(found, {name: promised[name] for name in found}, ranks=ranks, source=place / OUTPUT)
    others = {name: metric for name, metric in promised.items() if name not in names_of(step.patterns)}
    if step.parser is None:
        return {**read_metrics(place / "metrics.json", others, ranks=ranks), **found}
    if step.patterns and not others:  # --metric replaces all metrics from the parser
        return found
    parsed = check_metrics(parse(step.parser, place / OUTPUT), others, ranks=ranks, source=place / OUTPUT)
    return {**parsed, **found}


def _hosts(place: Path) -> list[str]:
    """Return the host names in a step's host file, whose format depends on the launcher."""
    try:
        lines = (place / "hosts").read_text(encoding="utf-8").split("\n")
    except OSError:
        return []
    return [line.split()[0].partition(":")[0] for line in lines if line.strip()]


#: Name of the metric that contains a step's energy according to Slurm's accounting.
STEP_ENERGY = "step_energy"
#: The components whose energy each of Slurm's plugins measures.
_COVERS = {"rapl": "package, dram", "ipmi": "node", "xcc": "node", "pm_counters": "node", "gpu": "gpu"}


def read_energy(place: Path) -> dict[str, Any]:
    """Return the energy that a program wrote to its metrics document in a step's directory.

    The result contains ``energy`` and ``slurm_step`` if the document does. It is empty if the document cannot be read.
    """
    try:
        document = read_json(place / "metrics.json")
    except (OSError, ValueError):
        return {}
    found = {key: document[key] for key in ("energy", "slurm_step") if key in document} if _is_dict(document) else {}
    if not _is_energy(found.get("energy")):
        found.pop("energy", None)
    if not isinstance(found.get("slurm_step", ""), str):
        del found["slurm_step"]
    return found


def add_accounted_energy(run: Run, plan: Plan, steps: Sequence[dict[str, Any]]) -> None:
    """Add the energy recorded in Slurm's accounting, if any, to the metrics and the ``energy`` of the steps."""
    started = [step for step in steps if "slurm_step" in step]
    if plan.scheduler != "slurm" or not started:
        return
    job = read_reference(run)
    if job.foreign:
        return
    plugins = slurm.energy_plugins(job.cluster)
    joules = slurm.consumed_energy([step["slurm_step"] for step in started], job.cluster) if plugins else {}
    covers = ", ".join(_COVERS.get(each, each) for each in plugins or ())
    if plugins is None or joules is None:
        reason = f"{'scontrol' if plugins is None else 'sacct'} did not answer"
    else:
        reason = "sacct has no energy of the step" if plugins else "no acct_gather_energy plugin"
    for step in started:
        energy = step.setdefault("energy", {"measured": [], "not_measured": {}})
        used = (joules or {}).get(step["slurm_step"])
        if used is None:
            energy["not_measured"]["Slurm's step"] = reason
            continue
        energy["measured"].append(
            {
                "covers": covers,
                "source": f"Slurm's {', '.join(plugins or ())}, the whole step",
                "joules": float(used),
                "nodes": step.get("nodes"),
                "items": None,
                "item": None,
            }
        )
        step["metrics"] = {STEP_ENERGY: {"value": used, "unit": "J", "samples": [used]}, **step["metrics"]}


def describe_energy(steps: Sequence[Mapping[str, Any]]) -> str:
    """Describe the measured energy of the largest step, with its sources, and what is not measured."""
    found = [step for step in steps if "energy" in step]
    if not found:
        return "not measured: the program does not measure it"
    energy = max(found, key=lambda step: step["ranks"])["energy"]
    missing = [f"{covers} ({reason})" for covers, reason in energy["not_measured"].items()]
    parts = [_describe_energy(each) for each in energy["measured"]]
    return "; ".join([*parts, *([f"not measured: {', '.join(missing)}"] if missing else [])])


def energy_of(directory: Path) -> list[dict[str, Any]]:
    """Return the energy of each step of a finished run, omitting steps whose energy is unknown."""
    keys = ("nodes", "ranks", "repetition", "copy", "parameters", "energy")
    try:
        steps = (Run(directory).document("metrics") or {}).get("steps", [])
    except HidlError:  # unreadable
        return []
    return [{key: step[key] for key in keys if key in step} for step in steps if "energy" in step]


def _describe_energy(figure: Mapping[str, Any]) -> str:
    nodes = "" if figure["nodes"] in (None, 1) else f", {figure['nodes']} nodes"
    whole = f"{figure['covers']} {figure['joules']:.6g} J by {figure['source']}{nodes}"
    if not figure["items"]:
        return whole
    return f"{whole}, {figure['joules'] / figure['items']:.4g} J for each {figure['item']}"


def _is_energy(found: Any) -> bool:
    return _is_dict(found) and _is_dict(found.get("not_measured")) and all(_energy_figures(found.get("measured")))


def _energy_figures(measured: Any) -> Iterator[bool]:
    yield isinstance(measured, list)
    for each in measured if isinstance(measured, list) else ():
        numbers = [each.get("joules"), each.get("items")] if _is_dict(each) else []
        yield bool(numbers) and all(isinstance(number, (int, float)) for number in numbers)
        yield all(key in each for key in ("covers", "source", "nodes", "item"))


def _is_dict(found: Any) -> bool:
    return isinstance(found, dict)
