"""Host lists: folding and expanding are inverse, and read what Slurm writes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.hostlist import expand, fold

HOST = st.one_of(
    st.from_regex(r"[a-z]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True),
    st.builds(
        "{}{:0{}d}".format, st.sampled_from(["node", "c", "r1-n", "gpu2n"]), st.integers(0, 120), st.integers(1, 4)
    ),
    st.builds("c{}-{:03d}".format, st.integers(101, 105), st.integers(1, 12)),
)


@given(st.sets(HOST, max_size=40))
@example({"node1", "node01", "node001"})
@example({"c101-001", "c101-002", "c102-001"})
@example({"n9", "n10", "n010"})
def test_expanding_undoes_folding(hosts: set[str]) -> None:
    expanded = expand(fold(hosts))
    assert set(expanded) == hosts
    assert len(expanded) == len(hosts)


@given(st.sets(HOST, max_size=40))
def test_folding_undoes_expanding(hosts: set[str]) -> None:
    folded = fold(hosts)
    assert fold(expand(folded)) == folded


@given(st.sets(HOST, min_size=1, max_size=40))
def test_the_order_of_the_hosts_does_not_matter(hosts: set[str]) -> None:
    assert fold(sorted(hosts)) == fold(sorted(hosts, reverse=True))


def test_zeros_before_a_number_are_kept() -> None:
    assert fold(f"node{number:02d}" for number in range(1, 65)) == "node[01-64]"


def test_gaps_and_other_names_stand_apart() -> None:
    assert fold(["n1", "n2", "n4", "login"]) == "login,n[1-2,4]"


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        ("node[01-03]", ("node01", "node02", "node03")),
        ("c101-[001-002],c102-001", ("c101-001", "c101-002", "c102-001")),
        ("rack[1-2]n[1-2]", ("rack1n1", "rack1n2", "rack2n1", "rack2n2")),
        ("node[9-11]", ("node9", "node10", "node11")),
        ("alone", ("alone",)),
        ("", ()),
    ],
)
def test_expressions_of_slurm_are_read(expression: str, hosts: tuple[str, ...]) -> None:
    assert expand(expression) == hosts


@pytest.mark.parametrize(
    "expression", ["node[01-", "node[a-b]", "@all", "node[1-2]!node1x*", "a b;c", "n[2-1]", "$(id)", "node1-", "-a"]
)
def test_others_are_refused(expression: str) -> None:
    with pytest.raises(InvalidInput, match="invalid host list"):
        expand(expression)


@pytest.mark.parametrize("name", ["", "@all", "a,b", "n[1-2]", "a b", "-x", "a;b", "n\n", "n-"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="invalid host name"):
        fold([name])
