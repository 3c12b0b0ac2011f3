"""What each site's rules do to the top of a job script, whatever is asked for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.launch.placement import Allocation
from hidl_cli.schedulers import scheduler, unusable
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import Site

SHIPPED = [load(RULES, entry.name) for entry in list_all("site") if entry.origin == "shipped"]
SITES = {site.name: site for site in SHIPPED if not unusable(site)}
TACC = [name for name, site in SITES.items() if site.title.startswith("TACC")]
LSF = [name for name, site in SITES.items() if site.scheduler == "lsf"]
NAMED_NODES = {"nodelist", "w", "exclude", "x", "nodefile", "F"}

WORDS = st.text("aZ0_.-", min_size=1, max_size=8)
ALLOCATIONS = st.builds(
    Allocation,
    job_name=WORDS,
    nodes=st.integers(1, 5000),
    ranks_per_node=st.integers(1, 128),
    cores_per_rank=st.none() | st.integers(1, 64),
    gpus_per_node=st.none() | st.integers(0, 16),
    memory_gib=st.none() | st.floats(1, 4096),
    time_limit=st.integers(60, 86400).map(float),
    queue=st.none() | WORDS,
    account=st.none() | WORDS,
    qos=st.none() | WORDS,
    constraint=st.none() | WORDS,
    reservation=st.none() | WORDS,
)


def options(site: Site, allocation: Allocation) -> dict[str, str]:
    """The options at the top of a script, long or short, with their values."""
    lines = scheduler(site.scheduler or "").header(allocation, site.policies)
    found = [re.fullmatch(r"#(?:SBATCH|BSUB) --?([A-Za-z-]+)(?:[= ](.*))?", line) for line in lines]
    assert all(found), lines
    return {match[1]: match[2] or "" for match in found if match}


@given(name=st.sampled_from(TACC), allocation=ALLOCATIONS)
def test_a_script_for_tacc_names_no_node(name: str, allocation: Allocation) -> None:
    assert not options(SITES[name], allocation).keys() & NAMED_NODES


@given(name=st.sampled_from(TACC), allocation=ALLOCATIONS)
def test_a_script_for_tacc_asks_for_no_memory_no_gpus_and_no_environment(name: str, allocation: Allocation) -> None:
    refused = {"mem", "mem-per-cpu", "mem-per-gpu", "gres", "gpus", "gpus-per-node", "gpus-per-task", "export"}

    assert not options(SITES[name], allocation).keys() & refused


@given(name=st.sampled_from(TACC), allocation=ALLOCATIONS)
def test_a_script_for_tacc_reports_nodes_ranks_and_time(name: str, allocation: Allocation) -> None:
    found = options(SITES[name], allocation)

    assert (found["nodes"], found["ntasks-per-node"]) == (str(allocation.nodes), str(allocation.ranks_per_node))
    assert re.fullmatch(r"\d+:\d\d:\d\d", found["time"])


@given(name=st.sampled_from(["perlmutter", "piz-daint", "pitzer"]), allocation=ALLOCATIONS)
def test_where_no_partition_is_to_be_named_none_is(name: str, allocation: Allocation) -> None:
    assert "partition" not in options(SITES[name], allocation)


@pytest.mark.parametrize("name", ["perlmutter", "pitzer"])
def test_where_nodes_are_shared_gpus_are_asked_for(name: str) -> None:
    found = options(SITES[name], Allocation("job", nodes=2, ranks_per_node=4, gpus_per_node=4))

    assert found["gpus-per-node"] == "4"


def test_a_job_for_perlmutter_asks_for_a_quality_of_service_and_a_kind_of_node() -> None:
    partition = SITES["perlmutter"].partitions["gpu-hbm80"]
    asked = Allocation("job", nodes=2, ranks_per_node=4, qos=partition.qos, constraint=partition.constraint)

    found = options(SITES["perlmutter"], asked)

    assert (found["qos"], found["constraint"]) == ("regular", "gpu&hbm80g")


@pytest.mark.parametrize("name", LSF)
def test_lsf_is_asked_for_whole_nodes_and_for_none_by_name(name: str) -> None:
    asked = Allocation("job", nodes=64, ranks_per_node=6, gpus_per_node=6, time_limit=3600.0, account="abc123")

    found = options(SITES[name], asked)

    assert (found["nnodes"], found.get("P") or found.get("G")) == ("64", "abc123")
    assert not found.keys() & {"m", "gpu", "M", "R"}
