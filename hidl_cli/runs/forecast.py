"""Forecast a run's metrics with the workload's ``estimate`` module, without running the workload."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hidl_cli import process
from hidl_cli.documents import read_json
from hidl_cli.errors import HidlError, MissingPrecondition, ProcessFailed
from hidl_cli.launch.placement import Placement
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.parameters import arguments, format_parameters
from hidl_cli.plan.workload import Value
from hidl_cli.site.load import load_site
from hidl_cli.stack import installation
from hidl_cli.tuning.judge import without_variables

SCHEMA = "hidl.forecast/1"

#: Environment variables that contain the placements to forecast, and the path of the file to which the workload's
#: module writes the forecast.
PLACEMENTS, DOCUMENT = "HIDL_PLACEMENTS", "HIDL_FORECAST"

_SECONDS = 900


@dataclass(frozen=True)
class Figure:
    """The forecast of one metric."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class Expected:
    """The forecast for a placement (nodes and ranks), or the ``problem`` that makes the program reject it."""

    figures: tuple[Figure, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Forecast:
    """The forecasts for all placements, with their assumptions and known errors."""

    expected: tuple[Expected, ...]
    assumptions: Mapping[str, str]
    known_errors: tuple[str, ...]


@dataclass(frozen=True)
class PointForecast:
    """The forecast for a point of the plan's matrix."""

    point: Mapping[str, Value]
    placements: tuple[Placement, ...]
    forecast: Forecast

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as plain data."""
        steps = zip(self.placements, self.forecast.expected, strict=True)
        return {
            "point": dict(self.point),
            "steps": [
                {
                    "nodes": placement.nodes,
                    "ranks": placement.ranks,
                    "metrics": [asdict(figure) for figure in expected.figures],
                    "problem": expected.problem,
                }
                for placement, expected in steps
            ],
            "assumptions": dict(self.forecast.assumptions),
            "known_errors": list(self.forecast.known_errors),
        }


def find_python(plan: Plan) -> Path | None:
    """Return the Python interpreter of the plan's installation, or else of this machine's installation of the stack."""
    if plan.lock:
        return Path(plan.prefix, "bin", "python")
    here = load_site("local")
    for root in (Path(plan.prefix).parents[2], installation.root_of(here, plan.stack)):
        with suppress(MissingPrecondition):
            return installation.find(here, plan.stack, root=root).python
    return None


def forecast_plan(plan: Plan, python: Path, interconnect: str | None) -> list[PointForecast]:
    """Forecast the metrics for all points and sizes of a plan.

    Args:
        plan: The plan.
        python: Result of ``find_python``.
        interconnect: Network between the nodes, as named in the site's file.

    Raises:
        HidlError: The module fails.
    """
    return [_forecast_point(plan, point, python, interconnect) for point in plan.points]


def _forecast_point(plan: Plan, point: Mapping[str, Value], python: Path, interconnect: str | None) -> PointForecast:
    placements = tuple({step.size: step.placement for step in plan.steps if step.point == point}.values())
    values = {**plan.parameters, **without_variables(point)}
    program = plan.workload.program_for(values)
    words = [
        str(plan.workload.estimate),
        str(program.module),
        *arguments(program, values, plan.workload.parameters),
    ]
    request = {"interconnect": interconnect, "placements": [asdict(placement) for placement in placements]}
    where = f" with {format_parameters(point)}" if point else ""
    with tempfile.TemporaryDirectory(prefix="hidl-") as directory:
        document = Path(directory, "forecast.json")
        variables = {
            **os.environ,
            **placements[0].environment(),
            PLACEMENTS: json.dumps(request),
            DOCUMENT: str(document),
        }
        try:
            process.run([python, "-m", *words], cwd=Path(directory), env=variables, timeout=_SECONDS)
            forecast = read_forecast(read_json(document), placements)
        except ProcessFailed as error:
            raise HidlError(f"{plan.workload.name}{where} cannot be estimated: {_last_line(error.output)}") from error
        except (OSError, ValueError) as error:
            raise HidlError(f"the forecast of {words[0]} for {plan.workload.name} cannot be read: {error}") from error
    return PointForecast(point, placements, forecast)


def read_forecast(document: Any, placements: Sequence[Placement]) -> Forecast:
    """Parse a forecast; raises ``ValueError`` if it is invalid or has the wrong number of placements."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"not a document with schema {SCHEMA}")
    try:
        forecast = TypeAdapter(Forecast).validate_python(document)
    except ValidationError as error:
        raise ValueError(f"{error.error_count()} value(s) do not match schema {SCHEMA}") from error
    if len(forecast.expected) != len(placements):
        raise ValueError(f"expected {len(placements)} placements, got {len(forecast.expected)}")
    return forecast


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
