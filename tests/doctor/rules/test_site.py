"""Site files against what schedulers and modules say, as recorded and made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.rules.site import RULES, SUBJECTS, SiteFacts, probe
from hidl_cli.site.load import load_site
from hidl_cli.site.probes.facts import Hardware, ProbedNode, Queue
from hidl_cli.site.record import DetectionRecord, write_record
from hidl_workloads.doctor.finding import Finding
from tests.site.recording import DIRECTORY, RecordedHost, recorded
from tests.stack.spack.conftest import site

UP = {"scontrol ping": "Slurmctld(primary) at head is UP\n"}
NORMAL = Queue("normal", is_default=True, max_nodes=8, max_wall="48:00:00")
NODES = tuple(
    ProbedNode(f"n{i}", Hardware(cores=64, memory_mib=256 * 1024, gpus=4), queues=("normal",)) for i in range(8)
)


def facts(**found: Any) -> SiteFacts:
    """A site with one partition, and a scheduler that has it."""
    described = found.pop("site", site())
    return replace(SiteFacts(described, queues=(NORMAL,), nodes=NODES), **found)


def findings(facts: SiteFacts) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity) for finding in RULES.findings(facts)]


def only(facts: SiteFacts) -> Finding:
    (finding,) = RULES.findings(facts)
    return finding


def partition(**keys: Any) -> Any:
    return {"partitions": {"normal": {"node_type": "node"} | keys}}


def test_a_file_that_agrees_with_the_machine_gives_nothing() -> None:
    assert findings(facts(accounting="accounting_storage/slurmdbd")) == []


def test_nothing_is_found_where_nothing_is_known() -> None:
    assert findings(SiteFacts(site())) == []


# --- HD091


def test_a_partition_that_is_not_there_is_a_warning_and_an_error_where_it_is_the_default() -> None:
    gone = site(partitions={"normal": {"node_type": "node"}, "old": {"node_type": "node"}})
    assert findings(facts(site=gone)) == [("HD091", "warning")]
    assert findings(facts(site=gone, queues=(Queue("old"),), nodes=())) == [("HD091", "error")]


def test_the_schedulers_own_name_of_a_partition_counts() -> None:
    assert findings(facts(site=site(**partition(queue="batch")), queues=(Queue("batch"),), nodes=())) == []


def test_a_site_whose_jobs_name_no_partition_is_compared_by_the_features_of_its_nodes() -> None:
    described = site(
        **partition(constraint="gpu&big|fat", max_nodes=64),
        node_types={"node": {"cores": 64}},
        policies={"partition": "never"},
    )
    nodes = tuple(replace(node, features=frozenset({"gpu"})) for node in NODES)
    fat = ProbedNode("fat1", Hardware(cores=32, memory_mib=512 * 1024, gpus=4), frozenset({"gpu", "big"}), ("other",))
    found = facts(site=described, queues=(Queue("other"),), nodes=nodes)
    assert findings(found) == []
    assert findings(replace(found, nodes=(*nodes, replace(fat, features=frozenset({"fat"}))))) == [("HD092", "warning")]
    assert findings(replace(found, nodes=(*nodes, fat))) == [("HD092", "warning")]


# --- HD092


def test_a_quality_of_service_may_exceed_the_limits_of_the_partition() -> None:
    assert findings(facts(site=site(**partition(max_nodes=16, max_wall="72:00:00", qos="big")))) == []


def test_gpus_and_memory_that_jobs_do_not_request_may_be_unknown_to_the_scheduler() -> None:
    nodes = tuple(replace(node, hardware=replace(node.hardware, gpus=0, memory_mib=240_000)) for node in NODES)
    described = {"node_types": {"node": {"gpus": 4, "memory_gib": 256}}}
    assert findings(facts(site=site(**described, policies={"gpus": "none", "memory": "none"}), nodes=nodes)) == []
    asked = facts(site=site(**described, policies={"gpus": "gres", "memory": "mem"}), nodes=nodes)
    assert (
        only(asked).seen
        == "gpus: 4 in the file, 0 in the scheduler; memory_gib: 256 in the file, 234.4 in the scheduler"
    )


@pytest.mark.parametrize(
    ("keys", "queue", "said"),
    [
        ({"max_nodes": 16}, NORMAL, "max_nodes: 16 in the file, 8 in the scheduler"),
        ({"max_nodes": 16}, replace(NORMAL, max_nodes=None), "max_nodes: 16 in the file, but normal has 8 nodes"),
        ({}, replace(NORMAL, min_nodes=2), "min_nodes: 1 in the file, 2 in the scheduler"),
        ({"max_wall": "72:00:00"}, NORMAL, "max_wall: 72:00:00 in the file, 48:00:00 in the scheduler"),
    ],
)
def test_a_limit_that_the_scheduler_does_not_have(keys: dict[str, Any], queue: Queue, said: str) -> None:
    finding = only(facts(site=site(**partition(**keys)), queues=(queue,)))
    assert (finding.rule, finding.severity, finding.seen) == ("HD092", "warning", said)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"cores": 128}, "cores: 128 in the file, 64 in the scheduler"),
        ({"gpus": 8}, "gpus: 8 in the file, 4 in the scheduler"),
        ({"memory_gib": 512}, "memory_gib: 512 in the file, 256.0 in the scheduler"),
    ],
)
def test_hardware_that_the_nodes_do_not_have(keys: dict[str, Any], said: str) -> None:
    assert only(facts(site=site(node_types={"node": keys}, policies={"memory": "mem"}))).seen == said


@pytest.mark.parametrize("keys", [{"max_nodes": 4}, {"max_wall": "01:00:00"}, {"max_nodes": 8}])
def test_a_file_may_promise_less_than_the_machine_has(keys: dict[str, Any]) -> None:
    assert findings(facts(site=site(**partition(**keys), node_types={"node": {"cores": 32, "gpus": 0}}))) == []


def test_nodes_that_the_partitions_feature_leaves_out_do_not_count() -> None:
    fat = ProbedNode("fat1", Hardware(cores=128), frozenset({"fat"}), ("normal",))
    kinds = {"node_types": {"node": {"cores": 128}}}
    mixed = facts(site=site(**partition(constraint="fat"), **kinds), nodes=(*NODES, fat))
    assert findings(mixed) == []
    assert findings(replace(mixed, nodes=(*NODES, replace(fat, hardware=Hardware(cores=96))))) == [("HD092", "warning")]


# --- HD093


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["gcc/12.2", "mvapich2/2.3.7"], []),
        (["gcc"], []),
        (["gcc/9.9"], ["policies.modules: gcc/9.9 not found; available: gcc/11.3, gcc/12.2"]),
        (["cuda/12"], ["policies.modules: cuda/12 not found; available: no module of that name"]),
    ],
)
def test_modules_that_are_gone_are_named_with_those_that_are_there(modules: list[str], expected: list[str]) -> None:
    described = site(policies={"modules": modules})
    found = facts(site=described, modules=frozenset({"gcc/11.3", "gcc/12.2", "mvapich2/2.3.7"}))
    assert [finding.seen for finding in RULES.findings(found)] == expected


def test_the_modules_of_an_mpi_library_are_looked_at_too() -> None:
    described = site(mpi={"gdr": {"family": "mvapich2-gdr", "modules": ["mvapich2-gdr/2.3.6"]}})
    found = facts(site=described, modules=frozenset({"mvapich2-gdr/2.3.7"}))
    assert only(found).seen == "mpi.gdr.modules: mvapich2-gdr/2.3.6 not found; available: mvapich2-gdr/2.3.7"


@pytest.mark.parametrize(
    ("modules", "rules"),
    [
        (["gcc/12", "openmpi/5.0"], []),  # Lmod loads gcc/12.2
        (["gcc/11.3", "openmpi/4.1"], [("HD093", "info")]),  # perhaps hidden until gcc/11.3 is loaded
        (["gcc/1", "openmpi/5.0"], [("HD093", "warning")]),
        (["openmpi/4.1"], [("HD093", "warning")]),
    ],
)
def test_a_module_that_another_one_may_make_available_is_no_warning(
    modules: list[str], rules: list[tuple[str, str]]
) -> None:
    described = site(mpi={"openmpi": {"family": "openmpi", "modules": modules}})
    assert findings(facts(site=described, modules=frozenset({"gcc/11.3", "gcc/12.2", "openmpi/5.0"}))) == rules


# --- HD094, HD095


def test_a_slurm_without_accounting_is_good_to_know() -> None:
    assert findings(facts(accounting="accounting_storage/none")) == [("HD094", "info")]


def test_a_scheduler_that_does_not_answer_is_an_error() -> None:
    assert findings(SiteFacts(site(), outage="Slurmctld(primary) at head is DOWN")) == [("HD095", "error")]


def test_missing_programs_of_the_scheduler_are_an_error() -> None:
    assert findings(SiteFacts(site(), program="scontrol")) == [("HD095", "error")]


def test_another_machine_is_not_held_against_the_file() -> None:
    host = ampere()
    assert SUBJECTS[0].examine(Context(host, site(match={"hostname": "login[0-9]+"}))) == []
    assert host.asked == []


# --- recorded machines


def ampere(**answers: str) -> RecordedHost:
    """A recorded Slurm with Lmod, whose controller answers."""
    return submitting("ampere", "sbatch", **UP | answers)


def submitting(system: str, program: str, **answers: str) -> RecordedHost:
    """A recorded machine from which jobs are submitted."""
    host = recorded(system)
    return replace(host, programs={**host.programs, program: f"/usr/bin/{program}"}, answers=answers)


def test_a_recorded_slurm_is_asked_for_all_that_it_has() -> None:
    found = probe(Context(ampere(), site()))
    assert found.queues
    assert found.nodes
    assert found.modules
    assert "HD091" in [finding.rule for finding in RULES.findings(found)]


def test_where_the_controller_is_down_nothing_more_is_asked_of_it() -> None:
    host = ampere(**{"scontrol ping": "Slurmctld(primary) at head is DOWN\n"})
    assert findings(probe(Context(host, site()))) == [("HD095", "error")]
    assert [words for words in host.asked if words.startswith("scontrol")] == ["scontrol ping"]


def test_a_recorded_lsf_is_held_against_the_file() -> None:
    host = submitting("summit", "bsub")
    described = site(scheduler="lsf", launchers=["jsrun"], **partition(queue="nosuch"))
    assert findings(probe(Context(host, described))) == [("HD091", "error")]


def test_the_local_site_has_no_scheduler_to_be_asked() -> None:
    host = ampere()
    assert SUBJECTS[0].examine(Context(host, load_site("local"))) == []
    assert host.asked == []


# --- HD096


def test_modulefiles_that_changed_since_they_were_asked_are_reported_by_their_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    modulefile = tmp_path / "modulefiles" / "2.3.7.lua"
    modulefile.parent.mkdir()
    modulefile.write_text("")
    library = {"family": "mvapich2", "version": "2.3.7", "modules": ["mvapich2"]}
    here = Context(RecordedHost(DIRECTORY / "none"), site(scheduler="local", mpi={"mvapich2": library}))
    write_record("here", DetectionRecord(), (), {("mpi", "mvapich2"): (modulefile,)})
    before = findings(probe(here))
    modulefile.write_text("-- another")
    assert (before, findings(probe(here))) == ([], [("HD096", "warning")])
