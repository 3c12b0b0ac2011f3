"""Where jsrun puts ranks: the examples of OLCF's user guide for Summit, on its nodes of 42 cores and 6 GPUs."""

from __future__ import annotations

import pytest
from hidl_twin.jsrun.options import parse
from hidl_twin.jsrun.placement import DoesNotFit, Host, Task, place, resource_sets

TWO = [Host(name, tuple(range(42)), tuple(range(6))) for name in ("h1", "h2")]


def placed(line: str) -> list[Task]:
    """The ranks of ``jsrun line`` on two of Summit's nodes."""
    options = parse([*line.split(), "./a.out"])
    return place(options, resource_sets(options, TWO))


def hosts(line: str) -> str:
    """The hosts of the ranks in their order, by their numbers."""
    return "".join(task.host[1:] for task in placed(line))


def test_six_ranks_on_each_node_have_a_gpu_each() -> None:
    tasks = placed("-n12 -r6 -a1 -g1 -c1")
    assert [(task.host, task.gpus) for task in tasks] == [(f"h{n}", (gpu,)) for n in (1, 2) for gpu in range(6)]


def test_two_ranks_share_a_gpu() -> None:
    tasks = placed("-n12 -a2 -g1 -c2 -dpacked")
    assert [(task.host, task.gpus[0], task.cores) for task in tasks[:4]] == [
        ("h1", 0, (0,)),
        ("h1", 0, (1,)),
        ("h1", 1, (2,)),
        ("h1", 1, (3,)),
    ]


def test_resource_sets_of_a_socket_hold_three_gpus() -> None:
    tasks = placed("-n4 -a6 -c6 -g3 -d packed")
    assert [(tasks[rank].host, tasks[rank].gpus) for rank in (0, 5, 6, 12)] == [
        ("h1", (0, 1, 2)),
        ("h1", (0, 1, 2)),
        ("h1", (3, 4, 5)),
        ("h2", (0, 1, 2)),
    ]


def test_without_a_number_per_host_the_first_host_is_filled_first() -> None:
    assert (hosts("-n4 -c1 -a1"), hosts("-n4 -c1 -a1 -r2")) == ("1111", "1122")


@pytest.mark.parametrize(
    ("distribution", "expected"), [("packed", "111222"), ("cyclic", "121212"), ("plane:2", "112212")]
)
def test_distributions(distribution: str, expected: str) -> None:
    assert hosts(f"-n2 -r1 -a3 -c3 -d {distribution}") == expected


def test_ranks_are_numbered_on_their_hosts() -> None:
    tasks = placed("-n2 -r1 -a2 -c2 -d cyclic")
    assert [(task.rank, task.host, task.local_rank, task.local_size) for task in tasks] == [
        (0, "h1", 0, 2),
        (1, "h2", 0, 2),
        (2, "h1", 1, 2),
        (3, "h2", 1, 2),
    ]


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("packed:4", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("packed:1", [(0,), (1,)]),
        ("rs", [tuple(range(8)), tuple(range(8))]),
        ("none", [(), ()]),
        ("proportional-packed:1", [(0,), (4,)]),
        ("packed:8", [tuple(range(8)), tuple(range(8))]),
    ],
)
def test_bindings(bind: str, expected: list[tuple[int, ...]]) -> None:
    assert [task.cores for task in placed(f"-n1 -a2 -c8 -g1 -b{bind}")] == expected


def test_as_many_ranks_as_there_are_cores_is_the_default() -> None:
    assert len(placed("")) == 84


def test_a_number_of_tasks_alone_gives_each_a_core() -> None:
    assert [task.cores for task in placed("-p3")] == [(0,), (1,), (2,)]


def test_tasks_are_shared_out_over_sets_of_which_the_last_is_not_full() -> None:
    assert hosts("-p5 -n2 -r1 -a3 -c3") == "11122"


def test_a_set_on_each_host() -> None:
    assert hosts("-nALL_HOSTS -cALL_CPUS -gALL_GPUS") == "12"


def test_a_host_can_be_excluded() -> None:
    assert hosts("-n1 -x h1") == "2"


@pytest.mark.parametrize("line", ["-n13 -g1 -c1", "-n2 -c43", "-n2 -r7 -g1", "-n1 -g7"])
def test_what_the_hosts_do_not_have_does_not_fit(line: str) -> None:
    with pytest.raises(DoesNotFit, match="do not fit on"):
        placed(line)
