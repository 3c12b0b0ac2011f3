"""Tuning in the files of sites, stacks and workloads: faults with their place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.inputs.load import Rules, examine
from hidl_cli.inputs.overlay import KindName, find
from hidl_cli.runs.checks import RULES as WORKLOAD
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


def findings(config: Path, kind: KindName, family: str, line: str, version: str = "null") -> list[Any]:
    file = config / f"{kind}s" / "mine.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(FILES[kind].format(family=family, line=line, version=version).replace("[true]", '["true"]'))
    return list(examine(KINDS[kind], find(kind, "mine")).findings)


@EVERY
@pytest.mark.parametrize("line", ["MV2_USE_CUDA: 1", "MV2_CPU_BINDING_POLICY: hybrid", "MV2_VBUF_TOTAL_SIZE: 64K"])
def test_what_the_family_reads_is_in_order(config: Path, kind: KindName, line: str) -> None:
    assert findings(config, kind, "mvapich2-gdr", line) == []


@EVERY
def test_a_misspelled_variable_is_marked_and_told_the_nearest(config: Path, kind: KindName) -> None:
    (finding,) = findings(config, kind, "mvapich2-gdr", "MV2_USE_CDUA: 1")

    assert finding.suggestion == "MV2_USE_CUDA"
    assert finding.mark.text.strip() == "MV2_USE_CDUA: 1"
    assert finding.mark.length == len("MV2_USE_CDUA")


@EVERY
def test_a_value_that_does_not_fit_is_marked(config: Path, kind: KindName) -> None:
    (finding,) = findings(config, kind, "mvapich2-gdr", "MV2_USE_CUDA: maybe")

    assert finding.expected == "0 or 1"
    assert finding.mark.length == len("maybe")


@EVERY
def test_a_variable_of_another_family_is_told_its_counterpart(config: Path, kind: KindName) -> None:
    (finding,) = findings(config, kind, "mvapich-plus", "MV2_USE_CUDA: 1")

    assert finding.suggestion == "MPIR_CVAR_ENABLE_GPU"


@EVERY
def test_two_names_of_one_variable_must_agree(config: Path, kind: KindName) -> None:
    lines = "{MVP_ENABLE_GPU: 1, MPIR_CVAR_ENABLE_GPU: 0}"
    file = config / f"{kind}s" / "mine.yaml"
    findings(config, kind, "mvapich", "MVP_ENABLE_GPU: 1")
    text = file.read_text()
    before, _, _ = text.rpartition("\n" + text.splitlines()[-1])
    file.write_text(f"{before} {lines}\n")

    (finding,) = examine(KINDS[kind], find(kind, "mine")).findings

    assert finding.message == "MVP_ENABLE_GPU and MPIR_CVAR_ENABLE_GPU are one variable, with two values"


def test_a_site_knows_the_version(config: Path) -> None:
    line = "MV2_ENABLE_SHARP_REDUCE: 1"

    assert findings(config, "site", "mvapich2", line, version='"2.3.6"') == []
    (finding,) = findings(config, "site", "mvapich2", line, version='"2.3.5"')
    assert "from 2.3.6 on" in finding.message


@EVERY
def test_a_family_that_there_is_none_of_is_the_schema_s_fault_alone(config: Path, kind: KindName) -> None:
    (finding,) = findings(config, kind, "mvapich3", "MV2_USE_CUDA: 1")

    assert "mvapich3" in finding.message


def test_files_without_tuning_do_not_read_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("hidl_cli.tuning")]:
        monkeypatch.delitem(sys.modules, module)

    assert examine(SITE, find("site", "local")).findings == ()
    assert "hidl_cli.tuning.catalogue" not in sys.modules
