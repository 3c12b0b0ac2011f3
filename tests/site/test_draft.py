"""Drafts of recorded systems: each is the expected file, in order for `hidl site check`, and can be planned with."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hidl_cli.errors import SchedulerUnreachable
from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import at_path
from hidl_cli.site.checks import RULES
from hidl_cli.site.detect import detect
from hidl_cli.site.draft import SiteDraft, default_name, draft, host_pattern
from hidl_cli.site.machine import Machine
from hidl_cli.site.probes.facts import Hardware, ProbedLibrary, ProbedNode, Queue, SchedulerFacts
from hidl_cli.site.probes.host import Cards
from hidl_cli.site.probes.survey import SurveyResult, survey
from hidl_cli.site.schema import Site
from tests.site.recording import DIRECTORY, SYSTEMS, RecordedHost, found, recorded

many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def drafted(facts: SurveyResult) -> SiteDraft:
    return draft(facts, default_name(facts))


def checked(made: SiteDraft, directory: Path) -> Site:
    """The site that the file holds; every problem of `hidl site check` fails the test."""
    file = directory / f"{made.name}.yaml"
    file.write_text(made.text, encoding="utf-8", newline="")
    examined = examine(RULES, at_path("site", file))
    assert examined.problems == ()
    assert examined.model is not None
    return examined.model


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_recorded_system_gives_the_expected_draft(system: str) -> None:
    assert drafted(found(system)).text == (DIRECTORY / system / "expected.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_draft_is_in_order_at_once(config: Path, tmp_path: Path, system: str) -> None:
    made = drafted(found(system))

    assert checked(made, tmp_path).name == made.name


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_draft_reads_the_same_in_every_yaml_reader(config: Path, tmp_path: Path, system: str) -> None:
    """PyYAML reads by YAML 1.1, where `no` is false and 48:00:00 a number; hidl by 1.2."""
    made = drafted(found(system))
    given_keys = yaml.safe_load(made.text)
    read = json.loads(checked(made, tmp_path).model_dump_json())

    assert {key: read[key] for key in ("name", "title", "sources") if key in given_keys} == {
        key: given_keys[key] for key in ("name", "title", "sources") if key in given_keys
    }
    assert {name: part.get("max_wall") for name, part in given_keys.get("partitions", read["partitions"]).items()} == {
        name: part["max_wall"] for name, part in read["partitions"].items()
    }


@pytest.mark.parametrize("system", SYSTEMS)
def test_hidl_is_on_the_drafted_site_where_it_was_drafted(config: Path, system: str) -> None:
    made = drafted(found(system))
    (config / "sites").mkdir(parents=True)
    (config / "sites" / f"{made.name}.yaml").write_text(made.text, encoding="utf-8")

    (outcome,) = (one for one in detect(recorded(system)) if one.site == made.name)

    assert outcome.matched, outcome.reasons


def test_a_compute_node_is_on_the_drafted_site_too(config: Path) -> None:
    made = drafted(found("ampere"))
    (config / "sites").mkdir(parents=True)
    (config / "sites" / "ampere.yaml").write_text(made.text, encoding="utf-8")
    node = RecordedHost(DIRECTORY / "none", "gpu017", environment={"SLURM_CLUSTER_NAME": "ampere"})

    assert next(one for one in detect(node) if one.site == "ampere").matched


def test_on_a_compute_node_its_processor_and_gpus_are_those_of_its_kind(config: Path, tmp_path: Path) -> None:
    facts = replace(
        found("ampere"),
        hostname="gpu001",
        cards=Cards(4, "NVIDIA A100-SXM4-40GB", "sm_80", 40.0, "nvidia-smi"),
    )
    site = checked(drafted(facts), tmp_path)

    a100 = site.node_types["a100"]
    assert (a100.cpu, a100.gpu_model, a100.gpu_memory_gib) == (facts.machine.cpu, "NVIDIA A100-SXM4-40GB", 40.0)
    assert site.node_types["cpu"].cpu is None


def test_a_partition_of_several_kinds_is_split_by_the_feature_that_asks_for_each(config: Path, tmp_path: Path) -> None:
    site = checked(drafted(found("cray")), tmp_path)

    regular = {name: part for name, part in site.partitions.items() if (part.queue or name) == "regular"}
    assert {part.constraint: site.node_types[part.node_type].gpus for part in regular.values()} == {
        "cpu": 0,
        "hbm40g": 4,
        "hbm80g": 4,
    }


def test_limits_that_are_unlimited_are_unknown(config: Path, tmp_path: Path) -> None:
    hugemem = checked(drafted(found("hetero")), tmp_path).partitions["hugemem"]

    assert (hugemem.max_nodes, hugemem.max_wall) == (1, None)


def test_a_reason_that_looks_like_a_field_is_none(config: Path, tmp_path: Path) -> None:
    """Nodes that are DOWN with the reason `Gres=gpu:h100:8 ...` have no GPU for it."""
    site = checked(drafted(found("hetero")), tmp_path)

    assert all(node.gpu_model != "h100" for node in site.node_types.values())


def test_nodes_of_a_queue_that_no_feature_asks_for_are_said_to_be_left_out() -> None:
    assert "left out: queue gpuserial: no feature selects only 1 x gpu" in drafted(found("hetero")).remarks


@pytest.mark.parametrize(
    ("hostname", "nodes", "pattern"),
    [
        ("login3.frontera.tacc.utexas.edu", [], r"login\d+\.frontera\.tacc\.utexas\.edu"),
        ("login1", ["c101-001", "c101-002", "gpu-1"], r"(login\d+|c\d+-\d+|gpu-\d+)(\..+)?"),
        ("node1", ["node1", "node2"], r"node\d+(\..+)?"),
        ("a+b", [], r"a\+b"),
        ("login", [f"{chr(97 + n)}x" for n in range(20)], None),
    ],
)
def test_a_host_pattern_fits_the_hosts_of_the_same_shape(hostname: str, nodes: list[str], pattern: str | None) -> None:
    assert host_pattern(hostname, nodes) == pattern


hostile = st.text(max_size=40) | st.sampled_from(
    [
        "a: b",
        "- x",
        "# no comment",
        "x # y",
        "'",
        '"',
        "\n",
        "a\nname: other",
        "{}",
        "[a",
        "*alias",
        "&anchor",
        "!!python/object",
        "no",
        "null",
        "~",
        "1e3",
        "12:30:00",
        "0x10",
        "\u2028name: x",
        "\x85",
        "\ud800",
        "\x00",
        "%TAG",
        "---",
        "...",
        "? x",
        "node[1-999999999]",
        "@all",
        "a" * 300,
        "(?P<x>",
        "\\",
    ]
)
nodes = st.builds(
    ProbedNode,
    name=hostile,
    hardware=st.builds(
        Hardware,
        sockets=st.none() | st.integers(1, 8),
        cores=st.none() | st.integers(1, 256),
        threads_per_core=st.none() | st.integers(1, 8),
        memory_mib=st.none() | st.integers(2, 2**40),
        gpus=st.none() | st.integers(0, 16),
        gpu_model=st.none() | hostile,
    ),
    features=st.frozensets(hostile, max_size=3),
    queues=st.lists(st.sampled_from(["q0", "q1", "q2"]), max_size=2).map(tuple),
    arch=st.none() | hostile,
)


@many
@given(
    words=st.tuples(hostile, hostile, hostile),
    names=st.lists(hostile, min_size=3, max_size=3),
    known=st.lists(nodes, max_size=6),
)
def test_whatever_a_machine_calls_its_parts_the_draft_is_in_order(
    config: Path, tmp_path: Path, words: tuple[str, str, str], names: list[str], known: list[ProbedNode]
) -> None:
    hostname, cluster, module = words
    called = dict(zip(("q0", "q1", "q2"), names, strict=True))
    queues = tuple(
        Queue(name, restricted=True, remarks=(name,), is_default=number == 1) for number, name in enumerate(names)
    )
    facts = replace(
        found("ampere"),
        hostname=hostname,
        batch=SchedulerFacts(
            "slurm",
            version=hostname,
            cluster=cluster,
            nodes=tuple(replace(node, queues=tuple(called[queue] for queue in node.queues)) for node in known),
            queues=queues,
            sources=("scontrol",),
            remarks=(hostname,),
        ),
        libraries=(ProbedLibrary(module, "mpich", module, module, prefix=module),),
    )

    checked(drafted(facts), tmp_path)


values = st.sampled_from(
    ["", "0", "-1", "(null)", "N/A", "UNLIMITED", "x y", "٣", "99999999999999999999", "a,b", "gpu:", "'"]
)


@many
@given(
    system=st.sampled_from(SYSTEMS),
    changes=st.lists(st.tuples(st.integers(0, 2**31), values | hostile), min_size=1, max_size=8),
)
def test_whatever_a_scheduler_prints_the_draft_is_in_order(
    config: Path, tmp_path: Path, system: str, changes: list[tuple[int, str]]
) -> None:
    """Any values of fields, or words of tables, are replaced throughout what a program of a system printed."""
    host = recorded(system)
    survey(host, Machine("x86_64", None, None, 1, None, None))
    texts = {command: text for command in tuple(host.asked) if (text := host.ask(*command.split(" "))) is not None}
    assume(texts)
    for place, value in changes:
        command = sorted(texts)[place % len(texts)]
        words = re.split(r"([=\s]+)", texts[command])
        replaced = words[place % (len(words) // 2 + 1) * 2]  # every other word is a separator
        texts[command] = "".join(value if word == replaced else word for word in words)
    host.answers = texts

    try:
        facts = survey(host, Machine("x86_64", None, None, 1, None, None))
    except SchedulerUnreachable:  # its very first answer was no answer
        return

    checked(drafted(facts), tmp_path)


FIELDS = [
    *("NodeName", "Arch", "Sockets", "CoresPerSocket", "ThreadsPerCore", "RealMemory", "Gres", "AvailableFeatures"),
    *("Partitions", "PartitionName", "MinNodes", "MaxNodes", "MaxTime", "Nodes", "State", "AllowAccounts", "RootOnly"),
    *("ClusterName", "GresTypes", "SelectType", "AccountingStorageEnforce", "DefMemPerCPU", "SLURM_VERSION"),
]
VALUES = ["", "0", "-1", "(null)", "UNLIMITED", "x'y", "\u0663", "9" * 30, "a,b", "gpu:", "gpu:a100:x", "1-2", '"\\#: ']


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", FIELDS)
def test_whatever_value_a_field_of_slurm_has_the_draft_is_in_order(
    config: Path, tmp_path: Path, field: str, value: str
) -> None:
    host = recorded("ampere")
    host.answers = {
        command: re.sub(
            rf"(?m)(?<!\w)({field}\s*= ?)\S*", lambda found: found[1] + value, host.ask(*command.split()) or ""
        )
        for command in ("scontrol show config", "scontrol --oneliner show node", "scontrol --oneliner show partition")
    }

    checked(drafted(survey(host, Machine("x86_64", None, None, 1, None, None))), tmp_path)


def test_ten_thousand_nodes_of_a_thousand_racks_make_few_types(config: Path, tmp_path: Path) -> None:
    """Features that say where a node is (rack17) do not make a kind of node."""
    many_nodes = tuple(
        ProbedNode(
            f"c{number:05}",
            Hardware(2, 56, 1, 192_000 + number % 7, 0),
            frozenset({f"rack{number // 40}", "clx" if number < 8000 else "icx"}),
            ("normal",),
        )
        for number in range(10_000)
    )
    facts = replace(
        found("ampere"), batch=SchedulerFacts("slurm", nodes=many_nodes, queues=(Queue("normal"),), sources=("x",))
    )

    site = checked(drafted(facts), tmp_path)

    assert {name: node.count for name, node in site.node_types.items()} == {"cpu-clx": 8000, "cpu-icx": 2000}


def test_the_how_to_shows_the_draft_as_it_is() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "describe-a-site.md"

    assert (DIRECTORY / "test-cluster" / "expected.yaml").read_text(encoding="utf-8") in page.read_text(
        encoding="utf-8"
    )
