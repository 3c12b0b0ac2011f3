"""Every file that ships with hidl is in order, and the schemas for editors agree with the models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hidl_cli.inputs import yamlfile
from hidl_cli.inputs.load import Rules, examine, schema
from hidl_cli.inputs.overlay import KindName, at_path, list_all
from hidl_cli.inputs.source import plain
from hidl_cli.plan.checks import RULES as WORKLOAD
from hidl_cli.site.checks import RULES as SITE
from hidl_cli.stack.checks import RULES as STACK
from tests.conftest import REPOSITORY, Hidl

RULES: dict[KindName, Rules[Any]] = {"site": SITE, "stack": STACK, "workload": WORKLOAD}
SCHEMAS: dict[KindName, Path] = {
    "site": REPOSITORY / "site_configs/schema/site.json",
    "stack": REPOSITORY / "recipes/schema/stack.json",
    "workload": REPOSITORY / "recipes/schema/workload.json",
}
SHIPPED = [entry for kind in RULES for entry in list_all(kind) if entry.origin == "shipped"]

CPU = {"cpu": {"cores": 8}}
QUEUE = {"q": {"node_type": "cpu"}}
SITE_KEYS = {
    "name": "x",
    "title": "X",
    "scheduler": "local",
    "launchers": ["mpiexec"],
    "node_types": CPU,
    "partitions": QUEUE,
    "default_partition": "q",
}
STACK_KEYS = {"name": "x", "title": "X", "mpi": "mpich", "packages": {"mpich": ""}}
WORKLOAD_KEYS = {"name": "x", "title": "X", "program": {"module": "a.b"}, "stacks": [{"stack": "mpi"}]}
EXAMPLES: list[tuple[KindName, dict[str, Any]]] = [
    ("site", SITE_KEYS),
    ("site", SITE_KEYS | {"extends": None}),
    ("site", SITE_KEYS | {"nmae": 1}),
    ("site", SITE_KEYS | {"name": "X Y"}),
    ("site", SITE_KEYS | {"node_types": {"CPU": {}}}),
    ("site", SITE_KEYS | {"node_types": {}, "partitions": {}, "default_partition": None}),
    ("site", SITE_KEYS | {"node_types": {"cpu": {"coers": 1}}}),
    ("site", SITE_KEYS | {"node_types": {"cpu": {"cores": 0}}}),
    ("site", SITE_KEYS | {"node_types": {"cpu": {"cores": None, "memory_gib": 1}}}),
    ("site", SITE_KEYS | {"partitions": {"q": {"node_type": "cpu", "max_wall": "48:00"}}}),
    ("site", SITE_KEYS | {"partitions": {"q": {}}}),
    ("site", SITE_KEYS | {"launchers": ["mpirum"]}),
    ("site", {"name": "x", "title": "X"}),
    ("site", {"name": "x", "extends": "local", "node_types": CPU}),
    ("site", {"name": "x", "extends": "local", "partitions": {"default": {"max_nodes": 2}}}),
    ("site", {"name": "x", "extends": "local", "partitions": {"default": {"max_nodes": 0}}}),
    ("stack", STACK_KEYS),
    ("stack", STACK_KEYS | {"packages": {"mpich": 5}}),
    ("stack", STACK_KEYS | {"verify": {"imports": ["a b"]}}),
    ("stack", {"name": "x", "extends": "mpi"}),
    ("workload", WORKLOAD_KEYS),
    ("workload", WORKLOAD_KEYS | {"stacks": []}),
    ("workload", WORKLOAD_KEYS | {"parameters": {"p": {"type": "int", "default": 1}}}),
    ("workload", WORKLOAD_KEYS | {"parameters": {"p": {"type": "int"}}}),
    ("workload", WORKLOAD_KEYS | {"metrics": {"m": {"unit": "s", "required": False}}}),
    ("workload", {"name": "x", "extends": "resnet50", "parameters": {"batch": {"default": 1}}}),
]


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_a_shipped_file_is_in_order(entry: Any, config: Path) -> None:
    assert examine(RULES[entry.kind], entry).problems == ()


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_a_shipped_file_fits_its_schema_and_names_it_for_editors(entry: Any) -> None:
    first = entry.path.read_text().splitlines()[0]
    root = yamlfile.read(entry.path).root

    assert first.startswith("# yaml-language-server: $schema=")
    named = (entry.path.parent / first.partition("=")[2]).resolve()
    assert named == SCHEMAS[entry.kind].resolve()
    jsonschema.Draft202012Validator(schema(entry.kind)).validate(plain(root))


def test_the_schemas_are_valid_and_written_where_files_name_them(hidl: Hidl, tmp_path: Path) -> None:
    commands = (REPOSITORY / "Makefile").read_text()
    for kind, path in SCHEMAS.items():
        assert f"hidl config schema {path.parent.relative_to(REPOSITORY)}" in commands
        assert hidl("config", "schema", str(tmp_path)).returncode == 0
        document = json.loads((tmp_path / path.name).read_text())
        jsonschema.Draft202012Validator.check_schema(document)
        assert document == schema(kind)


@pytest.mark.parametrize(("kind", "data"), EXAMPLES)
def test_schema_and_model_agree(kind: KindName, data: dict[str, Any], tmp_path: Path, config: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps(data))

    by_schema = jsonschema.Draft202012Validator(schema(kind)).is_valid(data)
    by_model = examine(RULES[kind], at_path(kind, file)).problems == ()

    assert by_schema == by_model
