"""Plans and capsules of any run mean the same after they are read back."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hidl_cli import redaction
from hidl_cli.capsule import LOG_BYTES, capsule_of, parse, request_of, required_words, unpacked
from hidl_cli.errors import UsageError
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.launch_plan import Plan, create_run, plan_of
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.record import Run, State
from hidl_cli.runs.checkpoint_interval import CheckpointInterval, with_interval
from hidl_cli.runs.verification import differences
from hidl_cli.site.load import load_site
from tests.conftest import Hidl

SECRET = "hf0Round1Trip2"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the secrets of a test: those that are ordinary words would be hidden in messages of later tests."""
    yield
    redaction._of_process.cache_clear()


_number = itertools.count()

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
VALUE = TEXT.filter(lambda text: "," not in text and text.strip() == text != "")
ODD = st.sampled_from(
    ["it's", "a b", "$HOME", "`id`", "{y}", "{{x}}", "***", "--", "%d", "a\\b", "\n", '"', "x;y", "--n=1", "*.h5"]
)
HIDDEN = st.sampled_from(
    [
        *(
            f"--hf-token={SECRET}",
            f"https://u:{SECRET}@host/a?token={SECRET}",
            f"export HF_TOKEN={SECRET}; x",
            f"{SECRET}",
        ),
        *(
            f"set -e\nexport HF_TOKEN={SECRET}\n./a y",
            f"cat <<E\nhf_token: {SECRET}\nE\n",
            f"a --password {SECRET}\n./b",
        ),
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> RunRequest:
    """Draw a run of a program of the user's own, with odd words, secrets, parameters, a matrix and tuning."""
    words = draw(st.lists(TEXT | ODD | HIDDEN, max_size=6))
    has_parameter, has_matrix = draw(st.booleans()), draw(st.booleans())
    words += ["--first={p}"] if has_parameter else []
    words += ["{m}"] if has_matrix else []
    values = draw(st.lists(VALUE, min_size=2, max_size=3, unique=True))
    return RunRequest(
        command=["./program", *words],
        directory="/",
        site="local",
        stack="mpi",
        ranks_per_node=draw(st.integers(1, 2)),
        uses_mpi=draw(st.booleans()),
        parameters=[f"p={draw(VALUE | st.just(SECRET))}"] if has_parameter else [],
        matrix=[f"m={','.join(values)}"] if has_matrix else [],
        metrics=draw(st.sampled_from([(), [r"rate[unit=1/s]=rate: (\S+)"], [r"loss[unit=s,take=last]=loss (\S+)"]])),
        tuning=draw(st.sampled_from([(), ["UCX_TLS=tcp"], [f"UCX_LOG_FILE=/tmp/{SECRET} %h"]])),
        env_vars=draw(st.sampled_from([None, {"MYRATE": "400"}, {"NCCL_DEBUG": "INFO", "NOTE": f"a {SECRET}"}])),
        repeat=draw(st.integers(1, 2)),
        hypothetical=True,
    )


@pytest.fixture
def stack(hidl_with: Callable[..., Hidl], monkeypatch: pytest.MonkeyPatch) -> None:
    """The mpi stack, for code called in this process."""
    for name, value in hidl_with("mpi").environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("stack")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(request_=requests())
def test_plan_and_capsule_of_any_run_are_read_back_and_mean_the_same(tmp_path: Path, request_: RunRequest) -> None:
    plan = prepare(request_)
    run = create_run(plan, job_script(plan), root=tmp_path / str(next(_number)))
    assert plan_of(run) == plan
    measured(run, plan)
    capsule = parse(capsule_of(run).to_bytes())
    assert not [name for name, data in capsule.members.items() if f"token={SECRET}".encode() in data]
    places = {each.name for each in capsule.hidden or ()}
    words = {name: value for name in required_words(capsule) for value in [f"u:{SECRET}" if "USER" in name else SECRET]}
    assert words.keys() <= places
    assert len(words) <= 2, "one for the secret, and one for the user of a URL"
    with unpacked(capsule, words) as original:
        machine = load_site("local")
        request = request_of(original, machine, None, AllocationOptions(), None)
        again = prepare(replace(request, hypothetical=True), machine, original.plan.workload, original.stack)
    assert job_script(replace(again, run=plan.run, created=plan.created)) == job_script(plan)


@pytest.mark.usefixtures("stack")
def test_a_run_of_several_jobs_keeps_their_time_limit_and_the_interval_between_checkpoints(tmp_path: Path) -> None:
    """Without the time, its limit of node-hours would be rejected."""
    plan = prepare(
        RunRequest(
            command=["./program"],
            directory="/",
            site="local",
            stack="mpi",
            until_done=True,
            max_jobs=7,
            time=600.0,
            max_node_hours=4.0,
            hypothetical=True,
        )
    )
    plan = with_interval(plan, CheckpointInterval(313.0, "from an earlier run"))
    run = create_run(plan, job_script(plan), root=tmp_path)
    measured(run, plan)
    with unpacked(parse(capsule_of(run).to_bytes()), {}) as original:
        machine = load_site("local")
        request = request_of(original, machine, None, AllocationOptions(), None)
        again = prepare(replace(request, hypothetical=True), machine, original.plan.workload, original.stack)
        shorter = request_of(original, machine, None, AllocationOptions(time=60), None)
    assert "export HIDL_CHECKPOINT_INTERVAL=313\n" in job_script(plan)
    assert job_script(replace(again, run=plan.run, created=plan.created)) == job_script(plan)
    assert shorter.time_limit == 60


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("set -e\nexport HF_TOKEN=x\npython3 prog.py y", {"HF_TOKEN": "x"}),
        ("set -e\npython3 prog.py --password x\npython3 prog.py", {"PASSWORD": "x"}),
        ("cat <<EOF\nhf_token: geheim1\nEOF\n./a", {"HF_TOKEN": "geheim1"}),
        ("export HF_TOKEN='two\nlines1'\n./a", {"HF_TOKEN": "two\nlines1"}),
        ("export HF_TOKEN=ab%0Acd12; ./a", {"HF_TOKEN": "ab%0Acd12"}),
    ],
    ids=["variable", "option", "document", "lines", "encoded"],  # an environment variable contains the test's name
)
def test_a_capsule_requires_the_words_that_were_typed(tmp_path: Path, script: str, words: dict[str, str]) -> None:
    command = ["bash", "-c", script]
    plan = prepare(RunRequest(command=command, directory="/", site="local", stack="mpi", hypothetical=True))
    run = create_run(plan, job_script(plan), root=tmp_path)
    measured(run, plan)
    capsule = parse(capsule_of(run).to_bytes())
    assert required_words(capsule) == tuple(words)
    assert tuple(each.name for each in capsule.hidden or ()) == tuple(words)
    with unpacked(capsule, words) as original:
        assert original.plan.workload.program.arguments == command[1:]


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(("secret", "name"), [("local", "site"), ("program", "run")])
def test_a_secret_that_is_also_a_name_is_a_usage_error(tmp_path: Path, secret: str, name: str) -> None:
    command = ["./program", "--password", secret]
    plan = prepare(RunRequest(command=command, directory="/", site="local", stack="mpi"))
    run = create_run(plan, job_script(plan), root=tmp_path)
    measured(run, plan)
    with pytest.raises(UsageError, match=f"cannot hide PASSWORD: the {name}'s name contains the same word"):
        capsule_of(run)


@pytest.mark.usefixtures("stack")
def test_a_secret_that_is_also_a_keyword_of_the_plan_is_a_usage_error(tmp_path: Path) -> None:
    command = ["./program", "--password", "ranks"]
    plan = prepare(RunRequest(command=command, directory="/", site="local", stack="mpi"))
    run = create_run(plan, job_script(plan), root=tmp_path)
    measured(run, plan)
    with pytest.raises(UsageError, match="redacted values: PASSWORD"):
        capsule_of(run)


@pytest.mark.usefixtures("stack")
def test_a_log_is_searched_for_secrets_before_it_is_cut(tmp_path: Path) -> None:
    """The name of the first secret is far before the end of the log, that of the second one just before it."""
    plan = prepare(RunRequest(command=["./program"], directory="/", site="local", stack="mpi"))
    run = create_run(plan, job_script(plan), root=tmp_path)
    measured(run, plan)
    first, second = "correct-horse-battery-staple-4711", "q7Zr8Kp2Wm5Xv9Tb4Nc6Jd1Lf3Gh0Ys7"
    begin = f"settings: {{'password': '{first}'}}\n" + "one more line\n" * 30_000
    end = "\n" + f"step 1 sent {first}\n".ljust(LOG_BYTES - 6, "x") + "\n"
    run.stdout.write_text(f"{begin}connect --token {second}{end}")
    run.stderr.write_text(f"connect --password abcdefgh{end}")  # no digits: hidden only where it is named
    capsule = capsule_of(run)
    assert not [name for name, data in capsule.members.items() if re.search(rb"staple|Gh0Ys7|efgh", data)]
    assert capsule.members["run/stdout.log"].startswith(b"step 1 sent ***PASSWORD***\n")
    assert [each.places for each in capsule.hidden or ()] == [("run/stdout.log", "run/stderr.log")]


@pytest.mark.usefixtures("stack")
def test_a_secret_of_the_environment_is_hidden_in_the_programs_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("WANDB_API_KEY", secret)
    command = ["bash", "-c", "echo connecting with $1", "x", secret]
    plan = prepare(RunRequest(command=command, directory="/", site="local", stack="mpi", hypothetical=True))
    assert secret not in plan.workload.title
    run = create_run(plan, job_script(plan), root=tmp_path)
    measured(run, plan)
    capsule = capsule_of(run)
    assert not [name for name, data in capsule.members.items() if secret.encode() in data]
    assert required_words(capsule) == ("WANDB_API_KEY",)
    with unpacked(capsule, {"WANDB_API_KEY": secret}) as original:
        assert original.plan.workload.program.arguments == command[1:]


@pytest.mark.usefixtures("stack")
def test_a_replay_sets_the_variables_of_the_run_and_lists_those_that_differ(tmp_path: Path) -> None:
    def planned(**variables: str) -> Plan:
        request = RunRequest(command=["./program"], directory="/", site="local", stack="mpi", env_vars=variables)
        return prepare(replace(request, hypothetical=True))

    plan = planned(MYRATE="400", NCCL_DEBUG="INFO")
    run = create_run(plan, job_script(plan), root=tmp_path)
    measured(run, plan)
    with unpacked(parse(capsule_of(run).to_bytes()), {}) as original:
        request = request_of(original, load_site("local"), None, AllocationOptions(), None)
        assert request.rank_variables == {"MYRATE": "400", "NCCL_DEBUG": "INFO"}
        before, after = original.provenance, replace(original.provenance, plan=planned(MYRATE="100", NOTE="x"))
        assert differences(before, after) == (
            "environment variable MYRATE: 400 → 100",
            "environment variable NCCL_DEBUG: INFO → not set",
            "environment variable NOTE: not set → x",
        )
        assert differences(before, before) == ()


def measured(run: Run, plan: Plan) -> None:
    """Write the status and the metrics of a run that ended well."""
    run.end_as(State.COMPLETED)
    steps = [
        {
            "ranks": step.placement.ranks,
            "nodes": step.placement.nodes,
            "repetition": step.repetition,
            "parameters": dict(step.point),
            "metrics": {"wall_time": {"value": 1.0, "unit": "s", "samples": [1.0]}},
        }
        for step in plan.steps
    ]
    run.write("metrics", {"schema": "hidl.run-metrics/1", "steps": steps})
