"""A program of the user's own as a workload: its name, its parameters, its braces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.errors import InvalidInput, UsageError
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.plan.program import compiled_by, name_of, own_workload, stem_of
from hidl_workloads.own_program import decode, encode

DIRECTORY = "/home/me/project"


@pytest.fixture(autouse=True)
def _no_stack(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.getbasetemp()))


def words_of(*command: str, **request: object) -> list[list[str]]:
    """The program's words of each step, as the starter gives them to the program."""
    asked = RunRequest(command=command, directory=DIRECTORY, site="local", hypothetical=True, **request)  # type: ignore[arg-type]
    found = []
    for step in prepare(asked).steps:
        argv = step.launch.argv
        directory, *words = map(decode, argv[argv.index("hidl_workloads.own_program") + 1 :])
        assert directory == DIRECTORY
        found.append(words)
    return found


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--lr", "0.1"], "train"),
        (["python3.11", "-u", "my dir/Train_Model.v2.py"], "train-model"),
        (["./pi"], "pi"),
        (["/opt/x/bin/lmp", "-in", "in.lj"], "lmp"),
        (["bash", "-c", "echo $RANK"], "echo"),
        (["bash", "-lc", "set -e\ncd x && ./a --token abcd1234efgh5678"], "a"),
        (["bash", "-c", "export KEY=0123456789abcdef0123; KEY=$(cat f) python3 -u prog.py"], "prog"),
        (["bash", "-c", "export KEY=0123456789abcdef0123"], "bash"),
        (["bash", "-c", "export KEY='ab;cdefgh12345'; ./a"], "a"),
        (["bash", "-c", "HF_TOKEN='x|geheim998877' ./a; ./b"], "a"),
        (["bash", "-c", "HF_TOKEN='two\nlines99' ./a"], "a"),
        (["bash", "-c", "T=\\\nabc12345 ./a"], "a"),
        (["bash", "-c", "python \\\n  train.py"], "train"),
        (["bash", "-c", 'T="$(cat f)" U=${X:-y} ./a'], "a"),
        (["bash", "-c", "T=(geheim1 geheim2); ./a"], "bash"),
        (["bash", "-c", "T=$(echo 'a;geheim1') ./a"], "bash"),
        (["bash", "-c", 'T="$(echo "a;geheim1")" ./a'], "bash"),
        (["bash", "-c", "read T <<< geheim1; ./a"], "bash"),
        (["bash", "-c", "export T <<EOF\ngeheim1\nEOF\n./a"], "bash"),
        (["bash", "-c", "case $T in geheim1) ./a;; esac"], "bash"),
        (["bash", "-c", "[[ $T == (geheim1|x) ]] && ./a"], "bash"),
        (["bash", "-c", "export T='geheim1"], "bash"),
        (["bash", "-c", '"$PROGRAM" geheim1'], "bash"),
        (["bash", "-c", "perl -e \"my $t='geheim1;x'\""], "perl"),
        (["bash", "-c", "bash -c 'T=\"a;geheim1\" ./a'"], "a"),
        (["bash", "-c", "# geheim1; x\nexec > log 2>&1; if [ x = geheim1 ]; then time ./a; fi"], "a"),
        (["bash", "-ce", "export T='geheim1;x'; ./a"], "a"),
        (["bash", "-s", "geheim1"], "bash"),
        (["bash", "-euo", "pipefail", "-c", "echo hi"], "echo"),
        (["bash", "-ceuo", "pipefail", "./a"], "a"),
        (["bash", "-c", "-e", "T=geheim1 ./a"], "a"),
        (["bash", "-euo", "pipefail", "+x", "train.sh"], "train"),
        (["bash", "-O", "extglob", "-o", "pipefail", "--rcfile", "geheim1", "train.sh"], "train"),
        (["bash", "-c"], "bash"),
        (["bash", "-c", "exec -a geheim1 ./a"], "a"),
        (["bash", "-c", "exec -cla geheim1 ./a"], "a"),
        (["bash", "-c", "time -p ./a"], "a"),
        (["bash", "-c", "TOKEN=a\rgeheim1 ./a"], "a"),
        (["bash", "-c", "TOKEN=a\fgeheim1\u2003geheim2 ./a"], "a"),
        (["python", "-W", "ignore", "-X", "dev", "-Werror", "t.py"], "t"),
        (["python3.11", "-uW", "ignore", "-m", "torch.distributed.run"], "torch"),
        (["julia", "-p", "4", "--threads", "2", "-O3", "t.jl"], "t"),
        (["ruby", "-w", "-I", "lib", "t.rb"], "t"),
        (["ruby", "-rset", "-E", "utf-8", "-Eutf-8", "-wClib/base", "t.rb"], "t"),
        (["ruby", "-rset", "-ne", "print 'geheim1'"], "ruby"),
        (["perl", "-I", "lib", "-w", "t.pl"], "t"),
        (["perl", "-MTime::HiRes", "-wmPOSIX=floor", "-Irelease", "t.pl"], "t"),
        (["perl", "-0777ne", "print 'geheim1'"], "perl"),
        (["perl", "-Mstrict", "-we", "print 'geheim1'"], "perl"),
        (["python", "-Xtracemalloc", "-Wonce", "t.py"], "t"),
        (["env", "-uSHELL", "./train"], "train"),
        (["env", "-u", "geheim1", "-C", "geheim2", "-i", "./train"], "train"),
        (["env", "T=x", "bash", "-c", "export T='a;geheim1'"], "bash"),
        (["env", "-S", "train --password geheim1"], "env"),
        (["perl", "-ne", "print 'geheim1'"], "perl"),
        (["julia", "--eval", "geheim1"], "julia"),
        (["python", "-", "geheim1"], "python"),
        (["python", "-c", "print('hf_0123456789')"], "python"),
        (["python", "resnet50.py"], "own-resnet50"),
        (["./3d"], "own-3d"),
        (["bash"], "bash"),
        (["./ü"], "own"),
        (["./" + "x" * 300], "x" * 48),
    ],
)
def test_the_file_names_the_workload(command: list[str], name: str) -> None:
    assert name_of(command) == name
    assert own_workload(command, directory="/").name == name


QUOTES = {"'": "'{}'", '"': '"{}"', "$'": "$'{}'", "nested": "\"$(echo '{}')\""}
SCRIPTS = (
    "export T={}; ./a",
    "T={} ./a",
    "if true; then U=1 T={} ./a; fi",
    "cd x && perl -e {}",
    "T=({} x); ./a",
    "for t in {}; do ./a; done",
    "read t <<< {}; ./a",
    "bash -c {}",
    "set -- {}\n./a",
)


@given(
    text=st.text("abc;|&(){}<>\n \t#$`\\=", max_size=12),
    quotes=st.sampled_from(sorted(QUOTES)),
    script=st.sampled_from(SCRIPTS),
)
def test_nothing_within_quotes_names_the_workload(text: str, quotes: str, script: str) -> None:
    word = QUOTES[quotes].format(f"x;geheim{text} geheim|geheim")
    assert "geheim" not in stem_of(["bash", "-c", script.format(word)])


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20), min_size=1, max_size=5
    )
)
def test_words_survive_every_launcher(words: list[str]) -> None:
    encoded = encode(words)
    assert [decode(word) for word in encoded] == words
    assert all(word not in ("", ":") and min(word) >= " " for word in encoded)


def test_words_reach_the_program_as_typed() -> None:
    typed = ["./prog", "a b", "$HOME", "x;y", "ünï", "a\nb", "", ":", "%41", "it's", "{print $1}", "{x}", "{x?y}", "--"]
    assert words_of(*typed) == [typed]


def test_a_matrix_fills_its_names_as_typed_and_no_others() -> None:
    steps = words_of("python", "train.py", "--lr={lr}", "{other}", matrix=["lr=0.1,1e-3"], repeat=1)
    assert steps == [
        ["python", "train.py", "--lr=0.1", "{other}"],
        ["python", "train.py", "--lr=1e-3", "{other}"],
    ]


def test_set_fills_a_name() -> None:
    assert words_of("prog", "{n}", parameters=["n=a,b"]) == [["prog", "a,b"]]


def test_the_size_of_a_step_has_names() -> None:
    steps = words_of("prog", "--problem", "{ranks}x{nodes}", scale="ranks=1,2", repeat=1)
    assert [words[-1] for words in steps] == ["1x1", "2x1"]


def test_a_value_for_a_name_that_no_word_holds_is_an_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        own_workload(["prog", "{rate}"], directory="/", matrix=["lr=1,2"])
    assert [problem.message for problem in caught.value.problems] == ["lr has a value, but {lr} is not in the command"]


@pytest.mark.parametrize("name", ["rank", "local_rank", "master_addr"])
def test_a_name_that_only_a_rank_knows_is_explained(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        own_workload(["prog", f"out.{{{name}}}"], directory="/")
    (problem,) = caught.value.problems
    assert f"${name.upper()}" in problem.expected
    assert words_of("prog", f"{{{name}}}", parameters=[f"{name}={{{name}}}"]) == [["prog", f"{{{name}}}"]]


def test_a_word_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(UsageError, match="is not UTF-8"):
        own_workload(["prog", "\udcff"], directory="/")


@pytest.mark.parametrize("command", [("",), (" ", "-n")])
def test_an_unset_variable_is_no_program(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="the program's name is empty"):
        own_workload(command, directory="/")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("pi.c", "hidl stack exec mpi -- mpicc -O2 pi.c -o pi, then: hidl run -- ./pi"),
        (
            "/my sum.cpp",
            "hidl stack exec mpi -- mpicxx -O2 '/my sum.cpp' -o '/my sum', then: hidl run -- '/my sum'",
        ),
    ],
)
def test_source_code_has_a_line_that_compiles_it(file: str, line: str) -> None:
    assert compiled_by(file) == line


def test_fortran_is_compiled_by_an_mpifort_that_exists() -> None:
    line = compiled_by("src/heat.F90") or ""
    assert line.startswith("mpifort -O2 src/heat.F90 -o src/heat (")
    assert line.endswith(", then: hidl run -- src/heat")


def test_a_script_is_not_compiled() -> None:
    assert compiled_by("train.py") is None


@pytest.mark.parametrize(("scaling", "metric"), [(None, "wall_time"), ("strong", "wall_time"), ("weak", "throughput")])
def test_the_kind_of_scaling_chooses_the_metric(scaling: str | None, metric: str) -> None:
    judged = own_workload(["prog"], directory="/", scaling=scaling).scaling  # type: ignore[arg-type]
    assert judged is not None
    assert (judged.kind, judged.metric) == (scaling or "strong", metric)


def test_the_world_is_checked_unless_the_program_uses_no_mpi() -> None:
    for uses_mpi in (True, False):
        request = RunRequest(command=["prog"], directory="/", site="local", uses_mpi=uses_mpi, hypothetical=True)
        assert [step.preflight is not None for step in prepare(request).steps] == [uses_mpi]


def test_the_current_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = prepare(RunRequest(command=["prog"], site="local", hypothetical=True))
    assert plan.workload.program.directory == str(tmp_path)


def test_its_plan_is_read_back_as_written() -> None:
    request = RunRequest(command=["prog", "{lr}", "{x?y}"], matrix=["lr=1,2"], directory="/", hypothetical=True)
    plan = prepare(request)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
