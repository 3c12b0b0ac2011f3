"""What changed between two plans, and the plans between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path

import pytest

from hidl_cli.bisect.journal import BisectChange, Changes, Side, changes_between, mixture
from hidl_cli.mpi import Library
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.launch_plan import Plan
from tests.bisect.nights import PROGRAM, planned, side

pytestmark = pytest.mark.usefixtures("config")

EAGER = "MPIR_CVAR_CH3_EAGER_MAX_MSG_SIZE"
VCIS = "MPIR_CVAR_CH4_NUM_VCIS"


def tried(good: Side, bad: Side) -> list[str]:
    return [str(change) for change in changes_between(good, bad).tried]


def subsets(changes: Changes) -> Iterable[tuple[BisectChange, ...]]:
    return chain.from_iterable(combinations(changes.tried, size) for size in range(len(changes.tried) + 1))


def without_id(plan: Plan) -> Plan:
    return replace(plan, run="", created="")


def test_equal_plans_have_no_changes() -> None:
    assert changes_between(side(planned()), side(planned())) == Changes((), ())


@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [
        ({"tuning": [f"{VCIS}=1"]}, {"tuning": [f"{VCIS}=2"]}, f"{VCIS}: 1 → 2"),
        ({}, {"tuning": [f"{EAGER}=65536"]}, f"{EAGER}: not set → 65536"),
        ({}, {"command": [*PROGRAM[:3], "16"]}, "program word 4: 8 → 16"),
        ({}, {"command": PROGRAM[:2]}, "program: python train.py --batch 8 → python train.py"),
        (
            {"threads": 1},
            {"threads": 2},
            "placement: 2 ranks per node with 1 threads",
        ),
    ],
    ids=["value", "new variable", "word", "program", "threads"],
)
def test_a_change_of_the_request_is_named(good: dict[str, object], bad: dict[str, object], expected: str) -> None:
    (found,) = tried(side(planned(**good)), side(planned(**bad)))
    assert found.partition(", ")[0] == expected  # binding depends on the cores of this machine


def test_a_change_of_the_site_is_named() -> None:
    plan = planned()
    later = side(plan, modules=("gcc/13",), environment={**plan.environment, "FI_PROVIDER": "verbs"})
    assert tried(side(plan), later) == ["modules: none → gcc/13", "environment variable FI_PROVIDER: not set → verbs"]


def test_another_stack_comes_with_its_library_and_names_its_packages() -> None:
    plan = planned()
    library = replace(plan.mpi, version="5.0.1", prefix="/stacks/new")
    old = side(plan, lock="a" * 64, packages={"numpy": "2.0", "mpich": "5.0.0"})
    new = side(
        plan,
        lock="b" * 64,
        prefix="/stacks/new",
        activate="/stacks/new/activate.sh",
        mpi=library,
        packages={"numpy": "2.1", "mpich": "5.0.1"},
    )
    (change,) = changes_between(old, new).tried
    assert str(change) == f"stack mpi: mpi (lock {'a' * 12}) → mpi (lock {'b' * 12})"
    assert {"numpy: 2.0 → 2.1", "mpich: 5.0.0 → 5.0.1"} < {*change.details}
    mixed = mixture(old, new, [change], "a-run")
    assert (mixed.prefix, mixed.mpi, mixed.mpi_of_the_stack) == ("/stacks/new", library, True)
    assert mixed.steps[0].launch.argv[0] == "/stacks/new/bin/mpiexec"
    assert "source /stacks/new/activate.sh" in job_script(mixed)


def test_a_stack_of_another_name_is_one_change() -> None:
    old, new = side(planned(), lock="a" * 64), side(planned(), lock="b" * 64, stack="mine", prefix="/stacks/mine")
    assert tried(old, new) == [f"stack: mpi (lock {'a' * 12}) → mine (lock {'b' * 12})"]


def test_variables_of_another_mpi_family_come_with_it() -> None:
    plan = planned(tuning=[f"{VCIS}=2"])
    site_library = Library("gdr", "mvapich2-gdr", prefix="/opt/gdr", environment={"MV2_PATH": "/opt/gdr"})
    environment = {name: value for name, value in plan.environment.items() if name != VCIS}
    environment |= {"MV2_PATH": "/opt/gdr", "MPI4PY_MPIABI": "mpich"}
    old, new = side(plan), side(plan, mpi=site_library, tuning=(), environment=environment)
    (change,) = changes_between(old, new).tried
    assert (change.kind, f"{VCIS}: 2 → not set" in change.details) == ("mpi", True)
    mixed = mixture(old, new, [change], "a-run")
    assert VCIS not in mixed.environment
    assert (mixed.environment["MV2_PATH"], mixed.environment["MPI4PY_MPIABI"]) == ("/opt/gdr", "mpich")


def test_the_likeliest_change_comes_first() -> None:
    plan = planned(tuning=[f"{VCIS}=1"])
    later = planned(tuning=[f"{VCIS}=2"], command=[*PROGRAM[:3], "16"])
    bad = side(later, lock="b" * 64, environment={**later.environment, "A": "1"}, modules=("gcc/13",))
    found = changes_between(side(plan, lock="a" * 64), bad).tried
    assert [change.kind for change in found] == ["stack", "tuning", "program", "modules", "environment"]
    assert [change.weight for change in found] == sorted((change.weight for change in found), reverse=True)


def test_every_mixture_has_what_it_says_and_nothing_else() -> None:
    plan = planned(tuning=[f"{VCIS}=1"])
    later = planned(tuning=[f"{VCIS}=2", f"{EAGER}=65536"], command=[*PROGRAM[:3], "16"])
    old = side(plan)
    new = side(later, environment={**later.environment, "A": "1"}, modules=("gcc/13",))
    changes = changes_between(old, new)
    assert len(changes.tried) == 5
    for chosen in subsets(changes):
        mixed = mixture(old, new, chosen, "a-run")
        again = changes_between(old, side(mixed)).tried
        assert {str(each) for each in again} == {str(each) for each in chosen}
        script = job_script(mixed)
        assert ("load_module gcc/13" in script) == any(each.kind == "modules" for each in chosen)
        assert (f"export {EAGER}=65536" in script) == any(each.name == EAGER for each in chosen)
        assert (" 16" in script) == any(each.kind == "program" for each in chosen)


def test_all_mixtures_read_the_standard_input_of_the_good_run() -> None:
    old, new = side(planned(stdin="/a/in.txt")), side(planned(stdin="/b/in.txt", tuning=[f"{VCIS}=2"]))
    changes = changes_between(old, new)
    assert "standard input: /a/in.txt → /b/in.txt (all runs read the good run's input)" in changes.left_out
    for chosen in subsets(changes):
        assert "own_program --stdin /a/in.txt " in job_script(mixture(old, new, chosen, "a-run"))


def test_nothing_and_everything_are_the_two_plans() -> None:
    plan, later = planned(tuning=[f"{VCIS}=1"]), planned(tuning=[f"{VCIS}=2"], command=[*PROGRAM[:3], "16"])
    old, new = side(plan), side(later)
    every = changes_between(old, new).tried
    assert mixture(old, new, [], plan.run).steps == plan.steps
    assert mixture(old, new, every, plan.run).steps == later.steps
    assert without_id(mixture(old, new, every, "")).environment == later.environment


def test_what_cannot_be_tried_is_left_out_by_name() -> None:
    plan = planned()
    new = side(plan, hidl="9.9", hosts=("n5",), inputs={"/data": "b" * 64})
    found = changes_between(side(plan, hidl="9.8", inputs={"/data": "a" * 64}), new)
    assert found.tried == ()
    assert [each.partition(" (")[0] for each in found.left_out] == [
        "hidl: 9.8 → 9.9",
        "hosts: n1 → n5",
        f"input /data: {'a' * 12} → {'b' * 12}",
    ]


def test_secrets_are_not_shown() -> None:
    plan = planned()
    new = side(plan, environment={**plan.environment, "WANDB_API_KEY": "hunter2"})
    (change,) = changes_between(side(plan), new).tried
    assert "hunter2" not in str(change)
    assert mixture(side(plan), new, [change], "a-run").environment["WANDB_API_KEY"] == "hunter2"


def test_a_study_is_tried_at_one_size(tmp_path: Path) -> None:
    plan = planned(scale="ranks=1,2", repeat=3)
    (step,) = mixture(replace(side(plan), placement=plan.steps[1].placement), side(plan), [], "a-run").steps
    assert (step.size, step.repetition, step.placement) == (2, 1, plan.steps[1].placement)
