"""Tuning in site, stack and workload files: errors with their position."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.inputs.load import Rules, examine
from hidl_cli.inputs.overlay import KindName, find
from hidl_cli.plan.checks import RULES as WORKLOAD
from hidl_cli.site.checks import RULES as SITE
from hidl_cli.stack.checks import RULES as STACK

FILES = {
    "site": """\
name: mine
title: A cluster
scheduler: local
launchers: [mpiexec]
node_types: {{cpu: {{cores: 8}}}}
partitions: {{normal: {{node_type: cpu}}}}
default_partition: normal
mpi:
  it:
    family: {family}
    version: {version}
    tuning:
      {line}
""",
    "stack": """\
name: mine
title: A stack
mpi: mpich
packages: {{mpich: ""}}
tuning:
  {family}:
    {line}
""",
    "workload": """\
name: mine
title: A workload
program: {{command: [true]}}
stacks: [{{stack: mpi}}]
tuning:
  {family}:
    {line}
""",
}
KINDS: dict[KindName, Rules[Any]] = {"site": SITE, "stack": STACK, "workload": WORKLOAD}
EVERY = pytest.mark.parametrize("kind", KINDS)


def problems(config: Path, kind: KindName, family: str, line: str, version: str = "null") -> list[Any]:
    file = config / f"{kind}s" / "mine.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(FILES[kind].format(family=family, line=line, version=version).replace("[true]", '["true"]'))
    return list(examine(KINDS[kind], find(kind, "mine")).problems)


@EVERY
@pytest.mark.parametrize("line", ["MV2_USE_CUDA: 1", "MV2_CPU_BINDING_POLICY: hybrid", "MV2_VBUF_TOTAL_SIZE: 64K"])
def test_variables_of_the_family_are_valid(config: Path, kind: KindName, line: str) -> None:
    assert problems(config, kind, "mvapich2-gdr", line) == []


@EVERY
def test_a_misspelled_variable_gets_a_suggestion(config: Path, kind: KindName) -> None:
    (problem,) = problems(config, kind, "mvapich2-gdr", "MV2_USE_CDUA: 1")

    assert problem.suggestion == "MV2_USE_CUDA"
    assert problem.mark.text.strip() == "MV2_USE_CDUA: 1"
    assert problem.mark.length == len("MV2_USE_CDUA")


@EVERY
def test_an_invalid_value_is_an_error(config: Path, kind: KindName) -> None:
    (problem,) = problems(config, kind, "mvapich2-gdr", "MV2_USE_CUDA: maybe")

    assert problem.expected == "0 or 1"
    assert problem.mark.length == len("maybe")


@EVERY
def test_a_variable_of_another_family_gets_its_counterpart(config: Path, kind: KindName) -> None:
    (problem,) = problems(config, kind, "mvapich-plus", "MV2_USE_CUDA: 1")

    assert problem.suggestion == "MPIR_CVAR_ENABLE_GPU"


@EVERY
def test_two_names_of_one_variable_must_agree(config: Path, kind: KindName) -> None:
    lines = "{MVP_ENABLE_GPU: 1, MPIR_CVAR_ENABLE_GPU: 0}"
    file = config / f"{kind}s" / "mine.yaml"
    problems(config, kind, "mvapich", "MVP_ENABLE_GPU: 1")
    text = file.read_text()
    before, _, _ = text.rpartition("\n" + text.splitlines()[-1])
    file.write_text(f"{before} {lines}\n")

    (problem,) = examine(KINDS[kind], find(kind, "mine")).problems

    assert problem.message == "MVP_ENABLE_GPU and MPIR_CVAR_ENABLE_GPU are the same variable, with different values"


def test_a_site_checks_the_version(config: Path) -> None:
    line = "MV2_ENABLE_SHARP_REDUCE: 1"

    assert problems(config, "site", "mvapich2", line, version='"2.3.6"') == []
    (problem,) = problems(config, "site", "mvapich2", line, version='"2.3.5"')
    assert "since 2.3.6" in problem.message


@EVERY
def test_an_unknown_family_is_reported_by_the_schema_only(config: Path, kind: KindName) -> None:
    (problem,) = problems(config, kind, "mvapich3", "MV2_USE_CUDA: 1")

    assert "mvapich3" in problem.message


def test_files_without_tuning_do_not_read_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("hidl_cli.tuning")]:
        monkeypatch.delitem(sys.modules, module)

    assert examine(SITE, find("site", "local")).problems == ()
    assert "hidl_cli.tuning.catalogue" not in sys.modules
