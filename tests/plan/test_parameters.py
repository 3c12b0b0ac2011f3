"""``--set`` and ``--matrix``: from words to values."""

from __future__ import annotations

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.plan.parameters import expand_matrix, matrix_word, resolve
from hidl_cli.plan.workload import Workload


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload.model_validate(
        {
            "name": "w",
            "title": "t",
            "program": {"module": "m"},
            "stacks": [{"stack": "mpi"}],
            "parameters": {
                "framework": {"type": "choice", "choices": ["torch", "tensorflow"], "default": "torch"},
                "batch": {"type": "int", "min": 1, "max": 64, "default": 8},
                "rate": {"type": "float", "min": 0, "default": 0.1},
                "shuffle": {"type": "bool", "default": False},
                "note": {"type": "str", "default": ""},
            },
        }
    )


def test_defaults_stand_where_nothing_is_set(workload: Workload) -> None:
    assert resolve(workload, []) == {
        "framework": "torch",
        "batch": 8,
        "rate": 0.1,
        "shuffle": False,
        "note": "",
    }


def test_values_have_the_parameters_types_and_the_last_one_wins(workload: Workload) -> None:
    values = resolve(workload, ["batch=2", "batch=4", "rate=1e-3", "shuffle=yes", "framework=tensorflow"])
    assert (values["batch"], values["rate"], values["shuffle"], values["framework"]) == (4, 0.001, True, "tensorflow")


def test_every_fault_is_reported_at_once(workload: Workload) -> None:
    words = ["batch=0", "batch=many", "rate=nan", "framework=jax", "shuffle=maybe", "bacth=3", "batch"]
    with pytest.raises(InvalidInput) as caught:
        resolve(workload, words)
    problems = caught.value.problems
    assert [problem.expected for problem in problems[:5]] == [
        "a whole number of at least 1 and at most 64",
        "a whole number of at least 1 and at most 64",
        "a number of at least 0",
        "one of torch, tensorflow",
        "true or false",
    ]
    assert problems[5].suggestion == "batch"
    assert problems[6].expected == "name=value"


def test_a_nul_is_refused(workload: Workload) -> None:
    with pytest.raises(InvalidInput):
        resolve(workload, ["note=a\0b"])


def test_a_matrix_is_every_combination_the_last_name_varying_fastest(workload: Workload) -> None:
    assert expand_matrix(workload, ["framework=torch,tensorflow", "batch=2,4"]) == [
        {"framework": "torch", "batch": 2},
        {"framework": "torch", "batch": 4},
        {"framework": "tensorflow", "batch": 2},
        {"framework": "tensorflow", "batch": 4},
    ]


def test_no_matrix_is_one_point_without_parameters(workload: Workload) -> None:
    assert expand_matrix(workload, []) == [{}]


def test_every_fault_of_a_matrix_is_reported_at_once(workload: Workload) -> None:
    words = ["batch=2,many", "bacth=1,2", "rate=1", "shuffle", "framework=torch,torch", "batch=1,2"]
    with pytest.raises(InvalidInput) as caught:
        expand_matrix(workload, words)
    assert [problem.message for problem in caught.value.problems] == [
        "--matrix batch: invalid value 'many'",
        "--matrix bacth: unknown parameter",
        "--matrix 'rate=1': too few different values",
        "--matrix 'shuffle' has no '='",
        "--matrix 'framework=torch,torch': too few different values",
        "--matrix batch: given twice",
    ]


def test_variables_of_mpi_are_compared_with_their_default(workload: Workload) -> None:
    points = expand_matrix(workload, ["mpi.A=1,2", "mpi.B=x"])
    assert [tuple(point.values()) for point in points] == [
        (a, b) for a in ("default", "1", "2") for b in ("default", "x")
    ]
    assert points == expand_matrix(workload, ["mpi.A=default,1,2", "mpi.B=x,default"])


@pytest.mark.parametrize("values", [["1", "2"], ["rc,sm", "tcp"], ["rc,sm"]])
def test_values_with_commas_are_read_back(workload: Workload, values: list[str]) -> None:
    points = expand_matrix(workload, [matrix_word("mpi.A", values)])
    assert [point["mpi.A"] for point in points] == ["default", *values]
