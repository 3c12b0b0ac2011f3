"""Load a run from its directory: plan, status, metrics, verdict, and the hosts of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hidl_cli.analysis.scaling.study import Study, from_json
from hidl_cli.documents import read_json
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.report.model import Outcome

_COMPLAINT_LINES = 20
_COMPLAINT_BYTES = 8192


@dataclass(frozen=True)
class Loaded:
    """``steps`` as in metrics.json; ``worlds``: for each of them, the hosts of its ranks (empty if unknown)."""

    run: Run
    plan: Plan
    status: Status
    steps: tuple[Mapping[str, Any], ...]
    worlds: tuple[tuple[str, ...], ...]
    versions: Mapping[str, str]
    verdict: Mapping[str, Any]

    @property
    def outcome(self) -> Outcome:
        """How it came out."""
        if not self.status.state.is_final:
            return Outcome.ACTIVE
        if self.status.state is not State.COMPLETED:
            return Outcome.BROKEN
        verdict = self.verdict.get("verdict")
        return Outcome(verdict) if verdict in ("pass", "fail", "inconclusive") else Outcome.UNJUDGED

    @property
    def study(self) -> Study | None:
        """The scaling study in its verdict; None where there is none that this hidl reads."""
        document = self.verdict.get("study")
        try:
            return from_json(document) if document else None
        except ValueError:
            return None

    def by_point(self) -> tuple[Loaded, ...]:
        """Each point of a matrix, as if it had been run alone; the run itself where there is no matrix."""
        if len(self.plan.points) == 1:
            return (self,)
        return tuple(self._at(point) for point in self.plan.points)

    def _at(self, point: Mapping[str, Any]) -> Loaded:
        its = [number for number, step in enumerate(self.steps) if step.get("parameters", {}) == point]
        return replace(
            self,
            plan=self.plan.at(point),
            steps=tuple(self.steps[number] for number in its),
            worlds=tuple(self.worlds[number] for number in its),
        )

    def largest(self) -> int:
        """The largest size that was planned, in ``plan.unit``."""
        return max(step.size for step in self.plan.steps)

    def values(self, metric: str, size: int) -> list[float]:
        """What the repetitions of one size yielded, as far as it is a number."""
        of_size = [step for step in self.steps if step.get(self.plan.unit) == size]
        found = [step["metrics"].get(metric, {}).get("value") for step in of_size]
        return [float(v) for v in found if isinstance(v, (int, float)) and not isinstance(v, bool)]

    def complaint(self) -> str:
        """The last lines of what the job wrote to stderr."""
        try:
            with self.run.stderr.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _COMPLAINT_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-_COMPLAINT_LINES:])


def load(run: Run, status: Status | None = None) -> Loaded:
    """Read a run's directory; ``status`` None: as its job last recorded. ``HidlError`` if it cannot be read."""
    plan = plan_of(run)
    steps = tuple((run.document("metrics") or {}).get("steps", ()))
    written = [_written(run, number) for number in range(1, len(steps) + 1)]
    versions: Mapping[str, Any] = next(
        (document["versions"] for document in written if isinstance(document.get("versions"), dict)), {}
    )
    return Loaded(
        run=run,
        plan=plan,
        status=status or run.status(),
        steps=steps,
        worlds=tuple(_hosts(step, document) for step, document in zip(steps, written, strict=True)),
        versions={str(name): str(version) for name, version in versions.items()},
        verdict=run.document("verdict") or {},
    )


def _written(run: Run, step: int) -> Mapping[str, Any]:
    """Return what the program itself wrote in a step; empty if unreadable, since it has been judged already."""
    try:
        document = read_json(run.metrics_file(step))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _hosts(step: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hosts of a step from its metrics or from the program's world."""
    world = document.get("world")
    hosts = step.get("hosts") or (world.get("hosts") if isinstance(world, dict) else None)
    return tuple(str(host) for host in hosts) if isinstance(hosts, list) else ()
