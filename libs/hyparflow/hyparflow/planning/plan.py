"""The plan of a training, which can be printed, drawn, saved and sent to the ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyparflow.errors import PlanError
from hyparflow.planning.costs import Memory
from hyparflow.planning.network import Network
from hyparflow.planning.prediction import Prediction, Timeline, run
from hyparflow.planning.stages import Stage, crossings
from hyparflow.schedules import Schedule, owner, pipelines, schedule

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = "hyparflow.plan/1"


@dataclass(frozen=True)
class Plan:
    """The stages of each partition and their schedule.

    World rank = (replica * spatial + part) * partitions + partition. ``spatial``: number of parts into which images are
    divided; costs and bytes are those of the largest part.
    """

    model: str
    fingerprint: str
    partitions: int
    replicas: int
    chunks: int
    schedule: str
    micro_batches: int
    micro_batch_size: int
    stages: tuple[Stage, ...]
    prediction: Prediction
    # Tensors between stages: name, bytes per sample.
    tensors: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    memory: Memory = field(default_factory=Memory)
    costs: str = "given"  # source of the costs: measured, estimated, refined, given
    spatial: int = 1

    @property
    def actions(self) -> Schedule:
        """The compute actions of each partition."""
        return schedule(self.schedule, self.partitions, self.micro_batches, self.chunks)

    @property
    def timeline(self) -> Timeline:
        """The predicted time of each action."""
        return run(self.actions, self.stages, self.tensors, self.micro_batch_size, self.network)

    @property
    def bubble(self) -> tuple[float, ...]:
        """The fraction of the step in which each partition waits within the pipeline, not for sums of gradients."""
        step = self.prediction.step_seconds
        return tuple(idle / step if step else 0.0 for idle in self.timeline.idle)

    @property
    def pipelines(self) -> int:
        """Copies of the model per replica: 2 under GEMS, else 1."""
        return pipelines(self.schedule)

    @property
    def batch_size(self) -> int:
        """Samples of a step, over all replicas."""
        return self.replicas * self.micro_batches * self.micro_batch_size

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.partitions * self.replicas * self.spatial

    @property
    def crossings(self) -> tuple[tuple[int, int], ...]:
        """The pairs (producing stage, consuming stage) with tensors between them."""
        return crossings(self.stages)

    def owner(self, stage: int, pipeline: int = 0) -> int:
        """Return the partition of a stage."""
        return owner(stage, pipeline, self.partitions)

    def stages_on(self, partition: int, pipeline: int = 0) -> tuple[Stage, ...]:
        """Return the stages of a partition, in order."""
        return tuple(stage for stage in self.stages if self.owner(stage.index, pipeline) == partition)

    def table(self) -> RenderableType:
        """Return tables of stages and partitions, and the timeline of a step, for a terminal."""
        from hyparflow.planning.tables import tables

        return tables(self)

    def draw(self, path: str | Path) -> None:
        """Write the timeline of a step as an SVG picture."""
        from hyparflow.planning.picture import drawing

        Path(path).write_text(drawing(self), encoding="utf-8")

    def __str__(self) -> str:
        from hyparflow.planning.tables import text

        return text(self)

    def to_json(self) -> str:
        """Return the plan as a JSON document for `from_json`."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Load a plan from a document of `to_json`.

        Raises:
            PlanError: The document is not a plan.
        """
        try:
            document = json.loads(text)
            if document.pop("schema") != SCHEMA:
                raise PlanError(f"the document is not a plan: expected the schema {SCHEMA}")
            stages = tuple(Stage(**_stage(stage)) for stage in document.pop("stages"))
            prediction = Prediction(**{name: _tuple(value) for name, value in document.pop("prediction").items()})
            tensors = {int(index): (name, size) for index, (name, size) in document.pop("tensors").items()}
            network, memory = Network(**document.pop("network")), Memory(**document.pop("memory"))
            return cls(
                **document, stages=stages, prediction=prediction, tensors=tensors, network=network, memory=memory
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"the document is not a plan: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the document to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Load a plan from a file.

        Raises:
            PlanError: The file does not contain a plan.
        """
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _stage(document: dict[str, Any]) -> dict[str, Any]:
    sends = {int(tensor): tuple(stages) for tensor, stages in document.pop("sends").items()}
    return {"sends": sends, **{name: _tuple(value) for name, value in document.items()}}
