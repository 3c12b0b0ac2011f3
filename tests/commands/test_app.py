"""The command line as a whole, and the wheel that carries it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner
from uv import find_uv_bin

from hidl_cli import __version__
from hidl_cli.commands import app
from tests.conftest import REPOSITORY, Hidl

HEAVY = {"numpy", "matplotlib", "pydantic", "jinja2", "yaml", "hidl_cli.site.schema"}


def test_the_version_is_reported(hidl: Hidl) -> None:
    assert hidl("--version").stdout == f"hidl {__version__}\n"


@pytest.mark.parametrize(("given", "kept"), [("000", "002"), ("022", "022"), ("077", "077")])
def test_nothing_is_made_that_everyone_can_write(given: str, kept: str) -> None:
    program = "import atexit, os; atexit.register(lambda: print(oct(os.umask(0))))\n"
    program += "from hidl_cli.__main__ import main; main()"
    command = ["sh", "-c", f'umask {given}; exec "$@"', "sh", sys.executable, "-c", program, "config", "show"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout
    assert int(shown.split()[-1], 8) == int(kept, 8)


def test_help_names_every_command_and_says_what_it_does(hidl: Hidl) -> None:
    shown = hidl("--help").stdout
    for command in ("install", "run", "status", "logs", "cancel", "resume", "results", "site", "stack", "workload"):
        assert command in shown


def test_help_imports_nothing_heavy() -> None:
    script = "import sys\nfrom hidl_cli.commands import app\napp.command_line()\nprint('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert HEAVY & set(loaded.stdout.split()) == set()


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def test_help_pages_show_every_word_of_their_source() -> None:
    """Rich takes words in brackets for markup, and swallows them."""
    found = dict(commands(typer.main.get_group(app.command_line())))
    assert len(found) > 50
    for path, command in found.items():
        shown = CliRunner().invoke(app.command_line(path[0]), [*path, "--help"], env={"COLUMNS": "400"}).output
        shown = " ".join(shown.split())
        texts = [parameter.help for parameter in command.params if getattr(parameter, "help", None)]
        for text in (command.help or "", *texts):
            for word in text.replace("\\[", "[").replace("\f", " ").split():
                assert word in shown, f"hidl {' '.join(path)} --help lacks {word!r}"


#: Commands that have nothing to fail at on a machine without installations and runs.
NEVER_FAIL = {
    *("config plugins", "config show", "doctor rules", "results list", "results reindex", "site detect", "site list"),
    *("tuning list", "workload list"),
}


def test_an_error_is_a_message_on_stderr_also_with_json(hidl: Hidl) -> None:
    """Each command with ``--json`` is called with the names of things that do not exist."""
    succeeded = set()
    for path, command in commands(typer.main.get_group(app.command_line())):
        options = {option for parameter in command.params for option in parameter.opts}
        if "--json" not in options:
            continue
        words = ["nowhere" for parameter in command.params if parameter.param_type_name == "argument"]
        words += [word for option in ("--site", "--like") if option in options for word in (option, "nowhere")]
        done = hidl(*path, *words, "--json")
        if done.returncode == 0:
            succeeded.add(" ".join(path))
            continue
        assert not done.stdout or json.loads(done.stdout)["schema"], done.args
        assert re.search(r"^error: |Error", done.stderr, re.MULTILINE), done.args
    assert succeeded == NEVER_FAIL


def test_the_readme_counts_what_is_there(hidl: Hidl) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert f"{len(hidl.json('tuning', 'list')['variables']):,} typed MPI variables" in readme
    python = re.findall(r"Python (3\.\d+) or newer", readme + (REPOSITORY / "CONTRIBUTING.md").read_text())
    required = re.findall(r'requires-python = ">=(.*)"', (REPOSITORY / "pyproject.toml").read_text())
    assert (set(python), len(python) > 1) == (set(required), True)


@pytest.mark.parametrize("arguments", [["no-such-command"], ["run"], ["run", "resnet50", "--no-such-option"]])
def test_a_wrong_command_line_is_a_usage_error(hidl: Hidl, arguments: list[str]) -> None:
    assert hidl(*arguments).returncode == 2


def test_config_shows_which_file_won(hidl: Hidl) -> None:
    hidl.add_workload("resnet50", "toy.py")
    entries = hidl.json("config", "show", "--origin")["entries"]
    (entry,) = (entry for entry in entries if entry["kind"] == "workload" and entry["name"] == "resnet50")
    assert entry["origin"] == "user"
    assert entry["hides"] == [str(REPOSITORY / "recipes" / "workloads" / "resnet50.yaml")]


@pytest.fixture(scope="module")
def wheel_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty virtual environment into which hidl's wheel was installed."""
    root = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", root], cwd=REPOSITORY, check=True)
    (wheel,) = root.glob("hidl-*.whl")
    venv.create(root / "venv", with_pip=False)
    subprocess.run([find_uv_bin(), "pip", "install", "-q", "--python", root / "venv", wheel], check=True)
    return root / "venv"


def test_the_wheel_carries_all_that_hidl_needs(wheel_venv: Path, hidl: Hidl, tmp_path: Path) -> None:
    environment = {name: value for name, value in hidl.environment.items() if name != "PYTHONPATH"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [wheel_venv / "bin" / "hidl", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert "local" in run("site", "list").stdout
    assert "pytorch" in run("stack", "list").stdout
    installed = run("install", "mpi", "--locked", "--json")
    assert installed.returncode == 0, installed.stderr
    missing = run("run", "resnet50")
    assert (missing.returncode, "hidl install pytorch" in missing.stderr) == (4, True)
    (installation,) = json.loads(installed.stdout)["installations"]
    assert "mpi4dask" in run("stack", "show", "mpi4dask").stdout  # it is an error where the library is not there
    packages = Path(installation["prefix"]).glob("lib/python3*/site-packages/hidl_workloads/__init__.py")
    assert len(list(packages)) == 1
