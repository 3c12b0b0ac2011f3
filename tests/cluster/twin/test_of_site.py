"""A site's file as the dress of a twin."""

from __future__ import annotations

from pathlib import Path

import pytest
from hidl_twin.dress import Dress, load, save
from hidl_twin.layout import Layout
from hidl_twin.rules import job_submit
from hidl_twin.twin.of_site import dress_of, environment

from hidl_cli.errors import InvalidInput, MissingPrecondition, UsageError
from hidl_cli.inputs.overlay import list_all
from hidl_cli.plan.devices import reason_not_runnable
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Match

pytestmark = pytest.mark.usefixtures("config")


def queues(dress: Dress) -> dict[str, tuple[int, int | None, int | None, bool]]:
    """Fewest and most nodes, minutes, whether nodes are given whole."""
    return {
        queue.name: (queue.min_nodes, queue.max_nodes, queue.max_minutes, queue.whole_nodes) for queue in dress.queues
    }


def test_partitions_bear_their_names_and_limits() -> None:
    found = queues(dress_of("frontera", 4))
    assert found["normal"] == (3, 512, 48 * 60, True)
    assert found["development"] == (1, 40, 2 * 60, True)


def test_each_kind_of_node_is_there_and_claims_what_the_site_has() -> None:
    dress = dress_of("frontera", 4)
    clx, nvdimm = dress.hosts[0], dress.hosts[-1]
    assert [host.kind for host in dress.hosts] == ["clx"] * 4 + ["nvdimm"] * 4
    assert (clx.sockets, clx.cores_per_socket, clx.memory_mib) == (2, 28, 192 * 1024)
    assert nvdimm.cpus == 112
    assert clx.full_name.endswith(".frontera.tacc.utexas.edu")


def test_a_login_host_is_one_by_which_the_site_is_recognized() -> None:
    dress = dress_of("frontera", 4)
    assert dress.login == load_site("frontera").login_host
    assert dress.login_name in dress.machines


def test_where_scripts_name_no_partition_there_is_one_of_all_nodes() -> None:
    dress = dress_of("perlmutter", 2)
    assert list(queues(dress)) == ["batch"]
    assert set(dress.queues[0].hosts) == set(dress.names)
    assert dress.rules is not None
    assert dress.rules["partition"] == "never"


def test_partitions_of_one_queue_are_one_partition_with_the_loosest_limits() -> None:
    dress = dress_of("frontier", 2)
    assert {"batch", "extended"} <= set(queues(dress))
    assert "debug" not in queues(dress)
    assert [limit.qos for limit in dress.limits if limit.queue == "batch"] == [None, "debug"]


def test_nodes_bear_the_features_that_partitions_ask_for() -> None:
    features = {host.kind: host.features for host in dress_of("perlmutter", 1).hosts}
    assert features["gpu-hbm80"] == ("gpu", "hbm80g")


@pytest.mark.parametrize(
    ("site", "expected"), [("juwels-booster", "pmix"), ("perlmutter", "pmi2"), ("frontera", "pmi2")]
)
def test_a_plain_srun_starts_the_default_mpi_of_the_site(site: str, expected: str) -> None:
    assert dress_of(site, 1).srun_mpi == expected


def test_a_dress_is_remembered_as_it_is(place: Path) -> None:
    layout = Layout.of(place)
    dress = dress_of("perlmutter", 2)
    save(layout, dress)
    assert load(layout) == dress


def test_a_site_on_another_scheduler_has_no_twin() -> None:
    with pytest.raises(MissingPrecondition, match="oakforest-pacs"):
        dress_of("oakforest-pacs", 2)


def test_a_twin_that_would_be_too_large_is_refused_with_the_largest_that_can_be_had() -> None:
    with pytest.raises(UsageError) as refused:
        dress_of("stampede3", 40)
    assert "64" in refused.value.message


def test_a_site_that_is_recognized_by_its_host_needs_the_name_of_one(config: Path) -> None:
    file = config / "sites" / "nowhere.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "name: nowhere\ntitle: nowhere\nscheduler: slurm\nlaunchers: [srun]\nnode_types: {a: {cores: 2}}\n"
        "partitions: {a: {node_type: a}}\ndefault_partition: a\nmatch: {hostname: 'x[0-9]+\\.nowhere'}\n"
    )
    with pytest.raises(InvalidInput, match="login_host"):
        dress_of("nowhere", 2)


def test_of_the_variables_that_report_the_site_those_of_one_value_are_set() -> None:
    assert environment(Match(env={"NERSC_HOST": "perlmutter", "HOST": "x[0-9]+"})) == {"NERSC_HOST": "perlmutter"}


def test_every_site_that_runs_has_a_twin() -> None:
    sites = [load_site(entry.name) for entry in list_all("site")]
    able = [site for site in sites if reason_not_runnable(site) is None and site.scheduler in ("slurm", "lsf")]
    assert len(able) > 20
    for site in able:
        dress = dress_of(site.name, 4)
        assert dress.hosts
        assert job_submit(dress, enforce_limits=True)
