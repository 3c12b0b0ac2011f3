"""From a request to a plan, and what is said of a request that cannot be met."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hyparflow.errors import PlanError
from hyparflow.planning.costs import Costs
from hyparflow.planning.planner import plan, refine

from tests.hyparflow.graphs import chain, graph

#: 12 nodes: 0.1 ms and 1 ms a sample forward, twice as much backward.
EVEN = Costs(np.full(12, 1e-4), np.full(12, 1e-3), np.full(12, 2e-4), np.full(12, 2e-3))


def planned(model: Any = None, **changes: Any) -> Any:
    """A plan of 12 equal nodes, 4 partitions, 8 micro-batches of 4 samples, with the changes named."""
    request: dict[str, Any] = {"partitions": 4, "batch_size": 32, "micro_batches": 8, "costs": EVEN}
    return plan(model or chain(12), **{**request, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partitions": 13}, "made has 12 nodes: too few for 13 partitions; take at most 12"),
        ({"partitions": 5, "schedule": "interleaved", "chunks": 3, "micro_batches": 5, "batch_size": 5}, "at most 4"),
        ({"replicas": 3}, "a batch of 32 samples does not divide by 3 replicas"),
        ({"micro_batches": 5}, "a replica's 32 samples do not divide by 5 micro-batches"),
        ({"schedule": "gems", "micro_batches": 1}, "1 is odd"),
        (
            {"schedule": "gems", "micro_batches": "auto", "batch_size": 9},
            "no number of micro-batches that gems",
        ),
        ({"schedule": "interleaved", "chunks": 2, "micro_batches": 2}, "2 is not one of 4"),
        ({"recompute": [True]}, "recompute names 1 stages; there are 4"),
        ({"recompute": "perhaps"}, "not 'perhaps'"),
        ({"assignment": ["n3", "n66", "n9"]}, "there is no layer 'n66'; did you mean 'n6'"),
        ({"assignment": ["n3", "n9", "n6"]}, "'n6' comes before 'n9' in the model"),
        ({"assignment": ["n3"]}, "4 stages need 3 layers at which a stage begins, not 1"),
        ({"assignment": {"n3": 4}}, "'n3' is given to stage 4; there are 0..3"),
        ({"assignment": {"n3": 1, "n6": 2}}, "no node is given to stage 3"),
        ({"assignment": {"n1": 1, "n2": 0, "n3": 2, "n4": 3}}, "never end"),
        ({"spatial": 0}, "the parts of the images must be at least 1, not 0"),
        ({"spatial": 2}, "images can be divided with a model only"),
        ({"spatial": 2, "costs": "measured"}, "cannot be timed on a part of the images"),
        ({"costs": "measured"}, "costs can be measured with a model only"),
        ({"memory_limit": 1000}, "no cut of made into 4 stages fits into 1,000 bytes"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        planned(**changes)


def test_the_costs_of_a_graph_are_estimated() -> None:
    assert planned(costs="auto").costs == "estimated"


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        planned(replicas=0, schedule="gems", chunks=2, micro_batches=3)
    assert len(caught.value.findings) == 3


def test_equal_nodes_are_shared_out_equally() -> None:
    assert [len(stage.nodes) for stage in planned().stages] == [3, 3, 3, 3]


@pytest.mark.parametrize("names", [["n2", "n4", "n8"], ["n0", "n2", "n4", "n8"]])
def test_stages_begin_at_the_layers_that_the_user_names(names: list[str]) -> None:
    assert [stage.first for stage in planned(assignment=names).stages] == ["n0", "n2", "n4", "n8"]


def test_nodes_that_a_mapping_leaves_out_go_with_their_inputs() -> None:
    stages = planned(partitions=2, assignment={"n5": 1}).stages
    assert [stage.nodes for stage in stages] == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9, 10, 11)]


def test_a_mapping_may_put_branches_side_by_side() -> None:
    model = graph([[0], [1], [1], [2, 3], *([index] for index in range(4, 12))])
    stages = planned(model, partitions=3, assignment={"n1": 1, "n2": 2, "n3": 2}).stages
    assert [stage.nodes[:2] for stage in stages] == [(0,), (1,), (2, 3)]


def test_the_step_of_even_stages_is_the_pipelines_formula() -> None:
    # The gradients and tensors are so small that only the passes count: (m + p - 1) of both passes of a stage.
    step = planned(partitions=4).prediction.step_seconds
    both = sum(float(seconds(4)[:3].sum()) for seconds in (EVEN.forward, EVEN.backward))
    assert step == pytest.approx((8 + 4 - 1) * both, rel=0.01)


def test_the_stage_that_sends_nothing_computes_both_passes_in_one() -> None:
    last = planned().stages[-1]
    assert (last.backward_seconds, last.forward_seconds) == (
        0.0,
        pytest.approx(float((EVEN.forward(4) + EVEN.backward(4))[:3].sum())),
    )


def test_more_micro_batches_are_taken_until_their_own_cost_eats_the_gain() -> None:
    cheap, dear = (
        Costs(np.full(12, fixed), EVEN.forward_each, np.full(12, fixed), EVEN.backward_each) for fixed in (1e-6, 5e-3)
    )
    taken = [planned(micro_batches="auto", costs=costs).micro_batches for costs in (cheap, dear)]
    assert taken == [32, 4]


def test_1f1b_holds_less_than_gpipe() -> None:
    peaks = [max(planned(chain(12, parameters=0), schedule=name).prediction.peak_bytes) for name in ("1f1b", "gpipe")]
    assert peaks[0] < 0.6 * peaks[1]


def test_gems_holds_the_activations_of_one_micro_batch_and_two_copies_of_the_weights() -> None:
    gems = planned(schedule="gems")
    inner = gems.stages[1]
    weights = 2 * inner.parameter_bytes * gems.memory.copies
    assert gems.prediction.peak_bytes[1] == weights + inner.activation_bytes


def test_stages_recompute_where_memory_asks_for_it() -> None:
    free = planned(schedule="gpipe")
    limit = int(max(free.prediction.peak_bytes) * 0.75)
    tight = planned(schedule="gpipe", memory_limit=limit)
    assert any(stage.recompute for stage in tight.stages)
    assert max(tight.prediction.peak_bytes) <= limit


def test_recomputation_costs_a_forward_pass() -> None:
    plain, again = planned(recompute=False).stages[0], planned(recompute=True).stages[0]
    assert again.backward_seconds == pytest.approx(plain.backward_seconds + plain.forward_seconds)


def test_chunks_shorten_the_bubble() -> None:
    bubbles = [sum(planned(**how).bubble) for how in ({}, {"schedule": "interleaved", "chunks": 3})]
    assert bubbles[1] < 0.6 * bubbles[0]


def test_the_sum_of_gradients_is_no_bubble() -> None:
    """Replicas make the step longer, but no partition wait longer within the pipeline; one partition never does."""
    one, several = (planned(chain(12, parameters=10**8), batch_size=32 * each, replicas=each) for each in (1, 4))
    assert several.prediction.step_seconds > 1.1 * one.prediction.step_seconds
    waits = [[each * made.prediction.step_seconds for each in made.bubble] for made in (one, several)]
    assert waits[0] == pytest.approx(waits[1])
    assert waits[0] == pytest.approx([one.timeline.seconds - busy for busy in one.timeline.busy])
    assert min(waits[0]) > 0
    assert planned(chain(12, parameters=10**8), partitions=1, replicas=4).bubble == (0.0,)


def test_a_slow_stage_is_cut_smaller_the_second_time() -> None:
    first = planned()
    measured = [(stage.forward_seconds, stage.backward_seconds) for stage in first.stages]
    measured[0] = (3 * measured[0][0], 3 * measured[0][1])
    second = refine(first, chain(12), measured, costs=EVEN)
    assert len(second.stages[0].nodes) < len(first.stages[0].nodes)


def test_what_was_measured_is_predicted_where_the_stages_stay() -> None:
    first = planned()
    measured = [(2 * stage.forward_seconds, 2 * stage.backward_seconds) for stage in first.stages]
    second = refine(first, chain(12), measured, costs=EVEN, keep=True)
    twice = [2 * busy for busy in first.prediction.busy_seconds]
    assert second.prediction.busy_seconds == pytest.approx(twice, rel=0.01)
