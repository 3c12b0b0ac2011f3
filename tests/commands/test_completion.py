"""Completion in shells: what is proposed, that bash really gets it, and that it is quick."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hidl_cli.commands.completion import candidates
from tests.conftest import REPOSITORY, Hidl
from tests.waiting import patience

#: What takes longer to import than people wait for an answer.
HEAVY = {"numpy", "pydantic", "rich", "jinja2", "hidl_cli.site.schema", "hidl_cli.plan.workload"}


def proposed(line: str) -> list[str]:
    """What could stand in the place of the line's last word (empty after a space)."""
    words = line.split(" ")
    return [one.word for one in candidates(words[1:-1], words[-1])]


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("hidl ru", ["run"]),
        ("hidl site ch", ["check"]),
        ("hidl run kme", ["kmeans"]),
        ("hidl run kmeans --site fronter", ["frontera", "frontera-rtx"]),
        ("hidl run kmeans --site=fronter", ["--site=frontera", "--site=frontera-rtx"]),
        ("hidl run kmeans --ranks", ["--ranks-per-node"]),
        ("hidl run kmeans --baseline h", ["history"]),
        ("hidl install mpi mpi4", ["mpi4dask", "mpi4dask-openmpi"]),
        ("hidl uninstall py", ["pytorch"]),
        ("hidl run resnet50 --set frame", ["framework=torch", "framework=tensorflow"]),
        ("hidl run resnet50 --set framework=te", ["framework=tensorflow"]),
        ("hidl run kmeans --set clus", ["clusters=16"]),
        ("hidl run kmeans --set per_rank=", ["per_rank=true", "per_rank=false"]),
        ("hidl run kmeans --nodes 2 --set points=5 --set clus", ["clusters=16"]),
        ("hidl run resnet50 --matrix optim", ["optimizer=sgd,adam"]),
        ("hidl run resnet50 --matrix optimizer=adam framew", ["framework=torch,tensorflow"]),
        ("hidl run kmeans --tune MV2_USE_CU", ["MV2_USE_CUDA=0"]),
        ("hidl run kmeans --tune MV2_USE_CUDA=", ["MV2_USE_CUDA=0", "MV2_USE_CUDA=1"]),
        ("hidl run kmeans --site frontera --partition dev", ["development"]),
        ("hidl run kmeans --site frontera --launcher ib", ["ibrun"]),
        ("hidl run kmeans --mpi st", ["stack"]),
        ("hidl tuning explain MV2_USE_CU", ["MV2_USE_CUDA"]),
        ("hidl tuning list --mpi mvapich2", ["mvapich2", "mvapich2-gdr"]),
        ("hidl results list --metric fit_", ["fit_time"]),
        ("hidl results history kmeans --metric in", ["inertia"]),
        ("hidl results compare kme", ["kmeans"]),
    ],
)
def test_a_line_goes_on_so(line: str, some: list[str]) -> None:
    assert set(some) <= set(proposed(line))


@pytest.mark.parametrize(
    "line",
    [
        "hidl run no-such-workload --set ",
        "hidl run kmeans --set no_such=",
        "hidl run kmeans --partition ",  # whose? no site is named
        "hidl run kmeans --nodes ",
        "hidl report --output ",  # a file: the shell knows better
        "hidl logs --stderr extra words ",
    ],
)
def test_what_is_not_known_is_not_proposed(line: str, hidl: Hidl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", hidl.environment["XDG_STATE_HOME"])
    assert proposed(line) == []


SSH_CONFIG = """\
Host *
    User me
Host gpu11 gpu12 gpu*
Match host gpu13
host=login1.example.org !login2
    HostName 10.0.0.1
"""


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        ("hidl run kmeans --hosts ", ["gpu11", "gpu12", "login1.example.org", "lab1", "lab2"]),
        ("hidl shell mpi --hosts gpu", ["gpu11", "gpu12"]),
        ("hidl doctor --hosts gpu11,g", ["gpu11,gpu12"]),
        ("hidl validate --hosts=lab1,la", ["--hosts=lab1,lab2"]),
        ("hidl run kmeans --hosts other", []),
    ],
)
def test_hosts_are_those_of_the_user_s_own_files(
    line: str, hosts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert proposed(line) == []
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(SSH_CONFIG)
    (tmp_path / ".mpirun_hosts").write_text("# ours\nlab1:4\nlab2:4:mlx5_0\n")
    assert proposed(line) == hosts


def test_options_that_are_given_are_not_proposed_again_unless_they_may_be() -> None:
    found = proposed("hidl run kmeans --nodes 2 --set points=5 --")
    assert ("--nodes" in found, "--set" in found) == (False, True)


def test_a_users_files_count_and_a_broken_one_proposes_nothing(config: Path) -> None:
    (config / "workloads").mkdir(parents=True)
    (config / "workloads" / "mine.yaml").write_text("extends: kmeans\nparameters: {depth: {type: int, default: 3}}\n")
    (config / "workloads" / "broken.yaml").write_text("parameters: [\n")

    assert {"depth=3", "points=500000"} <= set(proposed("hidl run mine --set "))
    assert proposed("hidl run broken --set ") == []


def test_runs_are_proposed_the_newest_first(hidl: Hidl) -> None:
    for name in ("20260101-000000-a-0001", "20260202-000000-b-0002"):
        (hidl.runs / name).mkdir(parents=True)
        (hidl.runs / name / "plan.json").write_text("{}")

    told = hidl(_HIDL_COMPLETE="complete_bash", COMP_WORDS="hidl\nlogs\n", COMP_CWORD="2")

    assert told.stdout.split() == ["20260202-000000-b-0002", "20260101-000000-a-0001"]


def test_zsh_gets_words_with_what_they_mean(hidl: Hidl) -> None:
    told = hidl(_HIDL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="hidl run kmeans --set per_rank=")
    help_ = "points is the number per rank, not the total"
    assert told.stdout == f"""_arguments '*: :(("per_rank=true":"{help_}"\n"per_rank=false":"{help_}"))'\n"""


def test_zsh_is_left_to_its_files_where_nothing_is_known(hidl: Hidl) -> None:
    told = hidl(_HIDL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="hidl report --output ")
    assert told.stdout == "_files\n"


@pytest.mark.parametrize(("line", "status"), [("hidl run kme", 0), ("hidl report --output ", 1)])
def test_fish_asks_first_whether_there_is_anything(hidl: Hidl, line: str, status: int) -> None:
    asked = {"_HIDL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": line}
    assert hidl(**asked, _TYPER_COMPLETE_FISH_ACTION="is-args").returncode == status


def test_fish_gets_words_with_what_they_mean(hidl: Hidl) -> None:
    asked = {"_HIDL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "hidl run kmeans --set clus"}
    told = hidl(**asked, _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert told.stdout == "clusters=16\tclusters to find\n"


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("hidl run resn", "hidl run resnet50"),
        ("hidl run resnet50 --set framework=te", "hidl run resnet50 --set framework=tensorflow"),
        ("hidl run kmeans --site=frontera-", "hidl run kmeans --site=frontera-rtx"),
        ("hidl run kmeans --tune MV2_USE_CU", "hidl run kmeans --tune MV2_USE_CUDA=0"),
        ("hidl tuning explain MV2_USE_CU", "hidl tuning explain MV2_USE_CUDA"),
    ],
)
def test_bash_completes_what_is_typed(hidl: Hidl, home: Path, typed: str, line: str) -> None:
    assert _typed_in_bash(hidl, home, typed) == line


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_for_other_shells_is_one_that_they_take(hidl: Hidl, home: Path, shell: str) -> None:
    environment = hidl.environment | {"_HIDL_COMPLETE": f"source_{shell}"}
    script = subprocess.run([home / "bin" / "hidl"], env=environment, capture_output=True, text=True, check=True).stdout
    assert f"complete_{shell}" in script
    if shutil.which(shell):
        subprocess.run([shell, "--no-execute"], input=script, text=True, check=True)


def test_answers_import_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from hidl_cli.commands.completion import candidates\n"
        "candidates(['run', 'resnet50', '--set'], '')\n"
        "candidates(['run', 'kmeans', '--tune'], 'MV2_')\n"
        "candidates(['results', 'list', '--metric'], '')\n"
        "candidates(['run'], '--')\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert HEAVY & set(loaded.stdout.split()) == set()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the program ``bin/hidl``, as pip makes it."""
    program = tmp_path / "bin" / "hidl"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom hidl_cli.__main__ import main\n\nmain()\n")
    program.chmod(0o755)
    return tmp_path


def _typed_in_bash(hidl: Hidl, home: Path, text: str) -> str:
    """The line that an interactive bash holds after ``text`` and the Tab key, once completion was installed."""
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    environment = hidl.environment | {"PATH": path, "TERM": "dumb", "HOME": str(home)}
    subprocess.run(["bash", "-c", "hidl --install-completion; exit $?"], env=environment, check=True)
    ours, theirs = pty.openpty()
    argv = ["bash", "--rcfile", home / ".bashrc", "--noprofile", "-i"]
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as bash:
        os.close(theirs)
        # Tab; to the line's begin and its end, to make of it what writes it to a file; leave.
        os.write(ours, f"{text}\t\x01echo '\x05' > {home}/line\nexit\n".encode())
        _read_to_the_end(ours)
        assert bash.wait(patience(30)) == 0
    return (home / "line").read_text().strip()


def _read_to_the_end(terminal: int) -> None:
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # what a terminal says when nobody is at its other end
        os.close(terminal)


@pytest.mark.parametrize("line", ["hidl run --nodes 2 -- ", "hidl run -- python --no", "hidl workload new a.py -- --l"])
def test_the_words_of_a_program_are_left_to_the_shell(line: str) -> None:
    assert proposed(line) == []
