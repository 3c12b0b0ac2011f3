"""``extends``: mappings merge, lists are replaced, and every value keeps the place where it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import find
from hidl_cli.plan.checks import load_workload
from hidl_cli.site.checks import RULES
from hidl_cli.site.load import load_site
from hidl_cli.stack.checks import load_stack

BASE = """\
name: base
title: Base
match: {hostname: login.*}
sources: [a, b]
scheduler: local
launchers: [mpiexec]
node_types:
  cpu: {cores: 56, memory_gib: 192}
partitions:
  normal: {node_type: cpu, max_nodes: 512}
default_partition: normal
"""


@pytest.fixture
def sites(config: Path) -> Path:
    directory = config / "sites"
    directory.mkdir(parents=True)
    (directory / "base.yaml").write_text(BASE)
    return directory


def test_mappings_merge_and_lists_and_values_are_replaced(sites: Path) -> None:
    (sites / "own.yaml").write_text(
        "name: own\nextends: base\nsources: [c]\nnode_types:\n  cpu: {cores: 48}\n  gpu: {gpus: 4}\n"
    )

    site = load_site("own")

    assert (site.name, site.title, site.sources) == ("own", "Base", ["c"])
    assert site.node_types["cpu"].cores == 48
    assert site.node_types["cpu"].memory_gib == 192
    assert site.node_types["gpu"].gpus == 4


def test_a_base_needs_no_name_and_no_whole_description(sites: Path) -> None:
    (sites / "_centre.yaml").write_text("scheduler: slurm\npolicies: {node_names: false}\n")
    (sites / "own.yaml").write_text(BASE.replace("base", "own").replace("scheduler: local", "extends: _centre"))

    assert (load_site("own").scheduler, load_site("own").policies.node_names) == ("slurm", False)


def test_a_users_base_comes_before_the_shipped_one(sites: Path) -> None:
    (sites / "_tacc.yaml").write_text("extends: _tacc\npolicies: {account: required}\n")

    policies = load_site("vista").policies

    assert (policies.account, policies.node_names) == ("required", False)


def test_a_fault_in_a_base_is_shown_where_it_stands(sites: Path) -> None:
    (sites / "_centre.yaml").write_text("policies: {node_names: perhaps}\n")
    (sites / "own.yaml").write_text("name: own\nextends: _centre\n" + BASE.partition("\n")[2])

    (problem,) = examine(RULES, find("site", "own")).problems

    assert problem.mark is not None
    assert problem.mark.file.name == "_centre.yaml"


def test_null_takes_a_value_away(sites: Path) -> None:
    (sites / "own.yaml").write_text("name: own\nextends: base\npartitions: {normal: {max_nodes: null}}\n")

    assert load_site("own").partition().max_nodes is None


def test_another_site_is_not_recognised_by_what_it_extends(sites: Path) -> None:
    (sites / "own.yaml").write_text("name: own\nextends: base\n")

    assert load_site("own").match is None


def test_a_name_is_not_inherited(sites: Path) -> None:
    (sites / "own.yaml").write_text("extends: base\n")

    with pytest.raises(InvalidInput) as caught:
        load_site("own")

    assert [problem.message for problem in caught.value.problems] == ["missing key `name`"]


def test_a_stack_adds_packages_and_imports_to_those_that_it_extends(config: Path) -> None:
    (config / "stacks").mkdir(parents=True)
    (config / "stacks" / "mine.yaml").write_text(
        "name: mine\ntitle: Mine\nextends: pytorch\npackages: {scipy: '>=1.14', numpy: ==2.1.*}\n"
        "verify: {imports: [scipy, torch]}\n"
    )

    stack = load_stack("mine")

    assert stack.packages.keys() >= {"mpich", "mpi4py", "torch", "scipy"}
    assert stack.packages["numpy"] == "==2.1.*"
    assert stack.verify.imports == ["torch", "scipy"]


def test_a_workload_changes_the_default_of_another(config: Path) -> None:
    (config / "workloads").mkdir(parents=True)
    (config / "workloads" / "big.yaml").write_text("name: big\nextends: resnet50\nparameters: {batch: {default: 64}}\n")

    assert load_workload("big").parameters["batch"].default == 64
    assert load_workload("big").parameters["batch"].min == 1


def test_a_users_file_extends_the_one_of_its_own_name_that_it_hides(config: Path) -> None:
    (config / "sites").mkdir(parents=True)
    (config / "sites" / "local.yaml").write_text("name: local\nextends: local\ninstall: {root: ~/stacks}\n")

    site = load_site("local")

    assert site.install.root == "~/stacks"
    assert site.title == "The machine you sit at"


def test_a_fault_in_what_is_extended_is_shown_in_its_own_file(sites: Path) -> None:
    (sites / "base.yaml").write_text(BASE.replace("cores: 56", "cores: many"))
    (sites / "own.yaml").write_text("name: own\nextends: base\ntitel: Own\n")

    problems = examine(RULES, find("site", "own")).problems

    assert [(problem.mark.file.name, problem.mark.line) for problem in problems if problem.mark] == [
        ("own.yaml", 3),
        ("base.yaml", 8),
    ]


def test_a_merged_fault_is_placed_where_the_value_was_written(sites: Path) -> None:
    (sites / "own.yaml").write_text("name: own\nextends: base\n\ndefault_partition: nope\n")

    (problem,) = examine(RULES, find("site", "own")).problems

    assert problem.mark
    assert (problem.mark.file.name, problem.mark.line) == ("own.yaml", 4)


def test_a_circle_is_a_finding_that_shows_the_way_round(sites: Path) -> None:
    for name, base in (("one", "two"), ("two", "three"), ("three", "one")):
        (sites / f"{name}.yaml").write_text(f"name: {name}\ntitle: T\nextends: {base}\n")

    (problem,) = examine(RULES, find("site", "one")).problems

    assert "one -> two -> three -> one" in problem.message
    assert problem.mark
    assert (problem.mark.file.name, problem.mark.line) == ("three.yaml", 3)


def test_an_unreadable_base_is_reported_and_the_rest_is_still_checked(sites: Path) -> None:
    (sites / "base.yaml").write_text("a: [\n")
    (sites / "own.yaml").write_text(
        "name: own\nextends: base\nnode_types: {cpu: {coers: 4}}\ndefault_partition: normal\n"
    )

    problems = examine(RULES, find("site", "own")).problems

    assert [(problem.mark.file.name, problem.suggestion) for problem in problems if problem.mark] == [
        ("own.yaml", "cores"),
        ("base.yaml", None),
    ]


def test_a_long_chain_is_merged(sites: Path) -> None:
    (sites / "s0.yaml").write_text(BASE.replace("name: base", "name: s0"))
    for number in range(1, 200):
        (sites / f"s{number}.yaml").write_text(f"name: s{number}\nextends: s{number - 1}\n")

    assert load_site("s199").partition().max_nodes == 512
