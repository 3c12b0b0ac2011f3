"""Workload files drafted from real programs: what argparse, click and typer say of themselves, and hostile programs."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput, UsageError
from hidl_cli.plan import draft as drafting
from hidl_cli.plan.draft import ProgramOptions, WorkloadDraft, draft_workload, may_read_options, read_options
from hidl_cli.plan.parameters import arguments, resolve
from hidl_cli.stack.installation import Installation
from tests.conftest import PROGRAMS

#: The Python of the tests, in the place of a stack's.
HERE = Installation.at(Path(sys.prefix))


def options_of(tmp_path: Path, program: str, *given: str) -> ProgramOptions:
    """What the program with that text tells."""
    file = tmp_path / "own.py"
    file.write_text(textwrap.dedent(program))
    return read_options(file, given, HERE)


def draft(tmp_path: Path, program: str, *given: str) -> WorkloadDraft:
    """The draft of the program with that text."""
    return draft_workload("own", ["python", "own.py"], given, options_of(tmp_path, program, *given), directory="/")


def words_with(made: WorkloadDraft, *assignments: str) -> list[str]:
    """The words that the program gets, after its file."""
    return arguments(made.workload.program, resolve(made.workload, assignments), made.workload.parameters)[1:]


ARGPARSE = """
    import argparse
    parser = argparse.ArgumentParser(description="Train a model.")
    parser.add_argument("--lr", type=float, default=0.1, metavar="LR", help="learning rate (default: %(default)s)")
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("--model", choices=["small", "large"], default="small")
    parser.add_argument("--no-cuda", dest="cuda", action="store_false")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--resume")
    parser.add_argument("--betas", type=float, nargs=2)
    parser.add_argument("-v", action="count", default=0)
    options = parser.parse_args()
    raise SystemExit("never reached")
"""


def test_modules_of_the_directory_that_hidl_was_called_in_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    for name in ("argparse", "json", "runpy", "hidl_workloads"):
        (strangers / f"{name}.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
    monkeypatch.chdir(strangers)
    (tmp_path / "beside.py").write_text("DEFAULT = 0.5")
    found = options_of(tmp_path, ARGPARSE.replace("import argparse", "import argparse, beside"))
    assert found.problem is None
    assert not (tmp_path / "pwned").exists()


def test_the_options_of_argparse_become_parameters(tmp_path: Path) -> None:
    made = draft(tmp_path, ARGPARSE)
    assert made.workload.title == "Train a model."
    found = {name: (one.type, one.default) for name, one in made.workload.parameters.items()}
    assert found == {
        "lr": ("float", 0.1),
        "batch_size": ("int", 64),
        "model": ("choice", "small"),
        "no_cuda": ("bool", False),
        "amp": ("bool", False),
        "no_shuffle": ("bool", False),
    }
    assert made.workload.parameters["lr"].help == "learning rate (default: 0.1)"


def test_the_program_gets_its_defaults_and_what_is_set(tmp_path: Path) -> None:
    made = draft(tmp_path, ARGPARSE)
    assert words_with(made) == ["--lr=0.1", "--batch-size=64", "--model=small"]
    assert words_with(made, "lr=1e-3", "no_cuda=true", "amp=true", "no_shuffle=true") == [
        "--lr=0.001",
        "--batch-size=64",
        "--model=small",
        "--no-cuda",
        "--amp",
        "--no-shuffle",
    ]


def test_what_is_not_a_parameter_is_said(tmp_path: Path) -> None:
    left_out = draft(tmp_path, ARGPARSE).remarks
    assert [remark.split()[0] for remark in left_out] == ["--resume", "--betas", "-v"]
    assert all(f"# {remark}" in draft(tmp_path, ARGPARSE).text for remark in left_out)


def test_given_arguments_are_the_defaults(tmp_path: Path) -> None:
    made = draft(tmp_path, ARGPARSE, "--lr", "0.5", "--amp", "--resume", "a b.pt", "--betas", "0.9", "0.99")
    assert words_with(made) == [
        "--lr=0.5",
        "--batch-size=64",
        "--model=small",
        "--amp",
        "--resume=a b.pt",
        "--betas",
        "0.9",
        "0.99",
    ]


REQUIRED = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, required=True)
    parser.parse_args()
"""


def test_required_arguments_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="required: data, --steps") as caught:
        draft(tmp_path, REQUIRED)
    assert "-- ARG" in (caught.value.hint or "")
    assert words_with(draft(tmp_path, REQUIRED, "/data", "--steps", "5"), "steps=6") == ["/data", "--steps=6"]


@pytest.mark.parametrize("library", ["click", "typer"])
def test_the_options_of_click_become_parameters(tmp_path: Path, library: str) -> None:
    pytest.importorskip(library)
    programs = {
        "click": """
            import click
            @click.command(help="Greet.")
            @click.option("--count", default=1, help="how often")
            @click.option("--loud", is_flag=True)
            @click.option("--mode", type=click.Choice(["a", "b"]), default="b")
            @click.argument("name")
            def main(count, loud, mode, name): raise SystemExit("never reached")
            main()
        """,
        "typer": """
            import typer
            from enum import Enum
            class Mode(str, Enum):
                a = "a"
                b = "b"
            def main(name: str, count: int = typer.Option(1, help="how often"), loud: bool = False, mode: Mode = "b"):
                "Greet."
                raise SystemExit("never reached")
            typer.run(main)
        """,
    }
    made = draft(tmp_path, programs[library], "me")
    assert made.workload.title == "Greet."
    words = words_with(made, "count=3", "loud=true", "mode=a")
    assert sorted(words) == ["--count=3", "--loud", "--mode=a", "me"]
    assert made.workload.parameters["count"].help == "how often"
    with pytest.raises(UsageError, match="own"):
        draft(tmp_path, programs[library])


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("import argparse, torch_that_is_not_there", "No module named 'torch_that_is_not_there'"),
        ("import argparse", "the program ended without reading its options"),
        ("import argparse, os; os._exit(7)", "the program failed before reading its options"),
        ("import argparse\nwhile True: print('x' * 1000000)", "File too large"),
        (
            "import os; open(os.environ['HIDL_OPTIONS'], 'w').write('[' * 100000)",
            "the options of the program cannot be read",
        ),
        ("import os; open(os.environ['HIDL_OPTIONS'], 'w').write('x' * 2**21)", "the program has too many options"),
        ("import os; open(os.environ['HIDL_OPTIONS'], 'w').write('{}')", "the options of the program cannot be read"),
    ],
)
def test_a_program_that_does_not_report_is_drafted_without_parameters(
    tmp_path: Path, program: str, problem: str
) -> None:
    made = draft(tmp_path, program, "--lr", "0.1")
    assert problem in made.remarks[0]
    assert words_with(made) == ["--lr", "0.1"]
    assert not made.workload.parameters


def test_a_program_that_never_reads_its_options_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "SECONDS", 1.0)
    found = options_of(tmp_path, "import time, signal; signal.signal(15, signal.SIG_IGN); time.sleep(1000)")
    assert "stopped by hidl after 1 s" in (found.problem or "")


def test_hostile_help_stays_text(tmp_path: Path) -> None:
    program = """
        import argparse
        parser = argparse.ArgumentParser(description="a: {b}\\n# c: *d\\x1b[31m\\n'")
        parser.add_argument("--x", default="!!python/object:os.system {y} $HOME\\nz: 1", help="- [\\n'\\"%")
        parser.add_argument("--Ünï", default="1")
        parser.parse_args()
    """
    made = draft(tmp_path, program)
    assert words_with(made) == ["--x=!!python/object:os.system {y} $HOME\nz: 1"]
    assert made.workload.title.startswith("a: {b} # c: *d")


def test_braces_in_given_arguments_are_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        draft_workload("own", ["./prog"], ["{x}"], None, directory="/")


@pytest.mark.parametrize(("name", "reads"), [("mnist.py", True), ("toy.py", False), ("pi.c", False)])
def test_only_a_program_that_names_such_a_library_is_executed(name: str, reads: bool) -> None:
    assert may_read_options(PROGRAMS / name) is reads
