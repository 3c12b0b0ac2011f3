"""The words that a workload's program is started with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.plan.parameters import arguments, command
from hidl_cli.plan.workload import Parameter, Program

VALUES = {"benchmark": "latency", "most": 4096, "validate": True, "full": False}


@given(st.text(st.characters(exclude_characters="\0")))
def test_text_becomes_one_argument_unchanged(text: str) -> None:
    assert arguments(Program(module="m"), {"note": text}, {}) == [f"--note={text}"]


@given(st.text())
def test_text_that_is_put_into_a_word_is_not_looked_at_again(text: str) -> None:
    assert arguments(Program(module="m", arguments=["-x", "<{note}>"]), {"note": text}, {}) == ["-x", f"<{text}>"]


def test_booleans_are_written_in_lower_case() -> None:
    assert arguments(Program(module="m"), {"shuffle": True, "batch": 8}, {}) == ["--shuffle=true", "--batch=8"]


def test_arguments_say_which_parameters_the_program_gets() -> None:
    program = Program(command=["osu_{benchmark}"], arguments=["-m", "8:{most}"])
    assert [*command(program, VALUES), *arguments(program, VALUES, {})] == ["osu_latency", "-m", "8:4096"]


def test_a_word_falls_away_where_its_parameter_is_false() -> None:
    program = Program(command=["p"], arguments=["{validate?-c}", "{full?-f}"])
    assert arguments(program, VALUES, {}) == ["-c"]


def test_a_choice_stands_for_its_words_where_it_is_a_word_by_itself() -> None:
    parameter = Parameter(
        type="choice", choices=["H-H", "D-H", "M"], default="H-H", words={"H-H": [], "D-H": ["-d", "cuda", "D", "H"]}
    )
    program = Program(command=["p"], arguments=["-c", "{places}", "--at={places}"])
    for value, words in (("H-H", []), ("D-H", ["-d", "cuda", "D", "H"]), ("M", ["M"])):
        found = arguments(program, {"places": value}, {"places": parameter})
        assert found == ["-c", *words, f"--at={value}"]


def test_a_command_without_arguments_is_taken_as_it_is() -> None:
    assert command(Program(command=["awk", "{print}"]), VALUES) == ["awk", "{print}"]
