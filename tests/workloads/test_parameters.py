"""The parameters of a workload stand in its recipe alone; its program reads them from what is generated of it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.parameters import arguments as words_of
from hidl_cli.plan.parameters import resolve
from hidl_workloads import arguments, parameters
from hidl_workloads.arguments import parameter
from tests.workloads import ranks

GENERATED = ranks.REPOSITORY / "hidl_workloads" / "parameters.py"


def _generator() -> Any:
    specification = importlib.util.spec_from_file_location("parameters", ranks.REPOSITORY / "tools" / "parameters.py")
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _programs() -> dict[str, type[Any]]:
    """The class of each workload whose program reads ``--name=value``, by the workload's name."""
    names = (path.stem for path in (ranks.REPOSITORY / "recipes" / "workloads").glob("[!_]*.yaml"))
    classes = {name: getattr(parameters, _generator().class_name(name), None) for name in sorted(names)}
    return {name: found for name, found in classes.items() if found}


@dataclass(frozen=True)
class Sample:
    kind: Literal["a", "b"] = parameter("a", help="which")
    size: int = parameter(8, min=1, max=64, unit="bytes", help="how large")
    rate: float = parameter(0.5, min=0)
    full: bool = parameter(False, help="all of it")
    note: str = parameter("")


def test_parameters_py_is_what_the_recipes_generate(tmp_path: Path) -> None:
    _generator().write(tmp_path / "parameters.py")
    assert GENERATED.read_text() == (tmp_path / "parameters.py").read_text(), "run: make parameters"


def test_each_program_that_takes_parameters_has_a_class() -> None:
    assert {"resnet50", "kmeans-sweep", "dask-merge", "hyparflow-vgg", "mpi-sanity", "omb-pairs"} <= _programs().keys()


@pytest.mark.parametrize("name", _programs())
def test_a_program_reads_the_words_that_hidl_starts_it_with(name: str) -> None:
    workload = load_workload(name)
    values = resolve(workload, [])
    found = asdict(arguments.parse(_programs()[name], words_of(workload.program, values, workload.parameters)))
    assert found == values
    assert list(found) == list(values)


@pytest.mark.parametrize("name", _programs())
def test_a_program_has_the_recipes_defaults(name: str) -> None:
    assert asdict(_programs()[name]()) == resolve(load_workload(name), [])


@pytest.mark.parametrize("text", ["", "--", "-x", "=", "a=b", "--size=1", " \n'\"\\", "\u00e9\U0001f600", "\udcff"])
def test_text_is_read_letter_by_letter(text: str) -> None:
    assert arguments.parse(Sample, [f"--note={text}"]) == Sample(note=text)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--size", "unknown argument '--size'"),
        ("size=2", "unknown argument 'size=2'"),
        ("--sizes=2", "unknown argument '--sizes=2'; valid arguments with their defaults: --kind=a --size=8"),
        ("--size=two", "size must be an integer, not 'two'"),
        ("--size=0", "size must be 1 or more, not 0"),
        ("--size=65", "size must be 64 or less, not 65"),
        ("--rate=nan", "rate must be 0 or more, not nan"),
        ("--rate=fast", "rate must be a number, not 'fast'"),
        ("--full=yes", "full must be one of true, false, not 'yes'"),
        ("--kind=c", "kind must be one of a, b, not 'c'"),
    ],
)
def test_an_invalid_word_is_an_error(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        arguments.parse(Sample, [word])


def test_help_lists_the_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        arguments.parse(Sample, ["--help"])
    assert not stopped.value.code
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["--kind=a", "which (one of a, b)"],
        ["--size=8", "how large (in bytes)"],
        ["--rate=0.5"],
        ["--full=false", "all of it (one of true, false)"],
        ["--note="],
    ]
