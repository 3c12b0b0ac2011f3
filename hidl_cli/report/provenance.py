"""The provenance of a run's numbers: everything of its plan that a reader may want to know, formatted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hidl_cli.errors import SubmitRefused
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.record.run import job_id
from hidl_cli.redaction import redact_document, redact_variable
from hidl_cli.report.loaded import Loaded
from hidl_cli.report.model import Measured, Outcome, Pairs, RunRecord, Tuned
from hidl_cli.report.text import counted
from hidl_cli.runs.conclude import error_for
from hidl_cli.runs.provenance import fold_or_join, format_mpi
from hidl_cli.stack.installation import at


def record_of(loaded: Loaded) -> RunRecord:
    """Return one run with its provenance."""
    plan, status = loaded.plan, loaded.status
    reason, hint = _why(loaded)
    return RunRecord(
        id=loaded.run.id,
        created=plan.created,
        workload=plan.workload.name,
        title=plan.workload.title,
        site=plan.site,
        partition=plan.partition,
        outcome=loaded.outcome,
        state=status.state.value,
        reason=reason,
        hint=hint,
        job=job_id(loaded.run.document("job") or {}, status),
        seconds=status.seconds,
        size=size_of(plan),
        parameters=_pairs(redact_document(dict(plan.parameters))),
        stack=plan.stack,
        lock=plan.lock,
        packages=packages_of(loaded),
        mpi=format_mpi(plan),
        launcher=plan.launcher,
        scheduler=plan.scheduler,
        launch_line=plan.command_line(plan.steps[-1]),
        modules=plan.modules,
        tuning=tuple(
            Tuned(setting.name, redact_variable(setting.name, setting.value), setting.origin) for setting in plan.tuning
        ),
        hosts=fold_or_join(status.hosts),
        host_count=len(set(status.hosts)),
        hidl=plan.hidl,
        directory=str(loaded.run.directory),
        warnings=plan.warnings,
        measured=tuple(_measured(loaded)),
        complaint=loaded.complaint() if loaded.outcome is Outcome.BROKEN else "",
    )


def size_of(plan: Plan) -> str:
    """Format the planned sizes: ``1, 2, 4 ranks, 5 times``."""
    sizes = sorted({step.size for step in plan.steps})
    unit = plan.unit.removesuffix("s") if sizes == [1] else plan.unit
    times = max(step.repetition for step in plan.steps)
    return f"{', '.join(map(str, sizes))} {unit}" + (f", {times} times" if times > 1 else "")


def packages_of(loaded: Loaded) -> Pairs:
    """Return the versions that the program reported, and those of the installation's packages if it still exists."""
    installation = at(Path(loaded.plan.prefix))
    of_the_stack: Mapping[str, Any] = {}
    if installation is not None and installation.lock == loaded.plan.lock:
        of_the_stack = installation.manifest["packages"]
    return _pairs({**loaded.versions, **of_the_stack})


def _why(loaded: Loaded) -> tuple[str, str | None]:
    """Return the reason of the outcome, and what to do next."""
    if loaded.outcome is Outcome.BROKEN:
        error = error_for(loaded.run, loaded.status)
        first = error.message.partition("\n")[0]
        return first if isinstance(error, SubmitRefused) else first.removeprefix(f"run {loaded.run.id} "), error.hint
    if loaded.outcome is Outcome.ACTIVE:
        status = loaded.status
        what = f"{status.state.value.lower()}, step {status.step} of {len(loaded.plan.steps)}"
        return f"{what}: {status.reason}" if status.reason else what, None
    return str(loaded.verdict.get("reason") or ""), _optional(loaded.verdict.get("hint"))


def _measured(loaded: Loaded) -> Iterator[Measured]:
    """Yield the metrics of each size with all repetitions."""
    found: dict[tuple[int, str, str], list[float | str]] = {}
    for step in loaded.steps:
        for metric, measured in step["metrics"].items():
            value = measured["value"]
            values = found.setdefault((step[loaded.plan.unit], metric, str(measured["unit"])), [])
            values.append(value if isinstance(value, (int, float)) else str(value))
    for (size, metric, unit), values in found.items():
        yield Measured(counted(size, loaded.plan.unit), metric, tuple(values), unit)


def _pairs(values: Mapping[str, Any]) -> Pairs:
    return tuple((str(name), str(value)) for name, value in values.items())


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)
