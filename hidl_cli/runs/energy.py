"""The energy of a run's steps, as measured by the program and as recorded in Slurm's accounting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hidl_cli.documents import read_json
from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.record import Run
from hidl_cli.schedulers import slurm
from hidl_cli.schedulers.backend import read_reference

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
    parts = [_describe(each) for each in energy["measured"]]
    return "; ".join([*parts, *([f"not measured: {', '.join(missing)}"] if missing else [])])


def energy_of(directory: Path) -> list[dict[str, Any]]:
    """Return the energy of each step of a finished run, omitting steps whose energy is unknown."""
    keys = ("nodes", "ranks", "repetition", "copy", "parameters", "energy")
    try:
        steps = (Run(directory).document("metrics") or {}).get("steps", [])
    except HidlError:  # unreadable
        return []
    return [{key: step[key] for key in keys if key in step} for step in steps if "energy" in step]


def _describe(figure: Mapping[str, Any]) -> str:
    nodes = "" if figure["nodes"] in (None, 1) else f", {figure['nodes']} nodes"
    whole = f"{figure['covers']} {figure['joules']:.6g} J by {figure['source']}{nodes}"
    if not figure["items"]:
        return whole
    return f"{whole}, {figure['joules'] / figure['items']:.4g} J for each {figure['item']}"


def _is_energy(found: Any) -> bool:
    return _is_dict(found) and _is_dict(found.get("not_measured")) and all(_figures(found.get("measured")))


def _figures(measured: Any) -> Iterator[bool]:
    yield isinstance(measured, list)
    for each in measured if isinstance(measured, list) else ():
        numbers = [each.get("joules"), each.get("items")] if _is_dict(each) else []
        yield bool(numbers) and all(isinstance(number, (int, float)) for number in numbers)
        yield all(key in each for key in ("covers", "source", "nodes", "item"))


def _is_dict(found: Any) -> bool:
    return isinstance(found, dict)
