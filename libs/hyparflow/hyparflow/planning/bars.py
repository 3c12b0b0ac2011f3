"""What the bars of a timeline stand for, however it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyparflow.planning.plan import Plan
    from hyparflow.schedules.actions import Action


def kind(plan: Plan, action: Action) -> str:
    """``forward``, ``backward``, or ``fused``: the last stage does both in one."""
    return action.kind if plan.stages[action.stage].sends else "fused"


def is_other(plan: Plan, action: Action) -> bool:
    """Whether it belongs to an odd chunk, or to GEMS' second pipeline."""
    return bool(action.pipeline or (action.stage // plan.partitions) % 2)


def others(plan: Plan) -> str | None:
    """What those are in this plan; None: it has none."""
    return "odd chunks" if plan.chunks > 1 else "second pipeline" if plan.pipelines > 1 else None
