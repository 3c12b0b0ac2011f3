"""Options of ``hidl run`` that become options of the scheduler."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
import yaml

from hidl_cli.errors import HidlError, InvalidInput, SubmitRefused, UsageError
from hidl_cli.launch.options import JobOptions
from hidl_cli.launch.placement import Allocation
from hidl_cli.plan.cost import estimate
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.schedulers import scheduler
from hidl_cli.site.job_options import TERMS, JobSettings
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Policies, Site
from tests.conftest import Hidl

PLAIN = Allocation(job_name="x", nodes=2, ranks_per_node=1)
SETTINGS: dict[str, JobSettings] = {
    "--licenses": JobSettings(licenses={"a": 2, "b": 1}),
    "--mail-type": JobSettings(mail_types=("begin", "end")),
    "--mail-user": JobSettings(mail_user="you@example.org"),
    "--after": JobSettings(after=("12", "13")),
    "--hold": JobSettings(hold=True),
    "--begin": JobSettings(begin=datetime(2026, 1, 31, 18, 5).timestamp()),
    "--comment": JobSettings(comment="two words"),
}
LINES = {
    "slurm": {
        "--licenses": "--licenses=a:2,b:1",
        "--mail-type": "--mail-type=BEGIN,END",
        "--mail-user": "--mail-user=you@example.org",
        "--after": "--dependency=afterok:12:13",
        "--hold": "--hold",
        "--begin": "--begin=2026-01-31T18:05:00",
        "--comment": '--comment="two words"',
    },
    "lsf": {
        "--licenses": '-R "rusage[a=2:b=1]"',
        "--mail-type": "-B\n-N",
        "--mail-user": "-u you@example.org",
        "--after": '-w "done(12) && done(13)"',
        "--hold": "-H",
        "--begin": "-b 2026:01:31:18:05",
    },
    "pbs": {
        "--licenses": "-l a=2,b=1",
        "--mail-type": "-m be",
        "--mail-user": "-M you@example.org",
        "--after": "-W depend=afterok:12:13",
        "--hold": "-h",
        "--begin": "-a 202601311805.00",
    },
    "flux": {
        "--after": "--dependency=afterok:12\n--dependency=afterok:13",
        "--hold": "--urgency=0",
        "--begin": '--begin-time="2026-01-31 18:05:00"',
        "--comment": '--setattr=user.comment="two words"',
    },
}
PREFIX = {"slurm": "#SBATCH ", "lsf": "#BSUB ", "pbs": "#PBS ", "flux": "# flux: "}


def header(name: str, settings: JobSettings, policies: Policies | None = None) -> list[str]:
    made = scheduler(name).header(Allocation(**{**vars(PLAIN), "settings": settings}), policies or Policies())
    return [line.removeprefix(PREFIX[name]) for line in made]


@pytest.mark.parametrize("name", list(LINES))
def test_each_setting_is_written_in_the_terms_of_the_scheduler(name: str) -> None:
    before = header(name, JobSettings())
    written = {option: "\n".join(header(name, SETTINGS[option])[len(before) :]) for option in LINES[name]}
    assert written == LINES[name]
    assert {option for option in SETTINGS if name in TERMS[option]} == set(LINES[name])


def test_options_of_the_user_stand_last() -> None:
    policies = Policies(directives=["--hint=nomultithread"])
    settings = JobSettings(hold=True, scheduler_options=("--switches=1",))
    assert header("slurm", settings, policies)[-3:] == ["--hint=nomultithread", "--hold", "--switches=1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--array=1-2", "--matrix"),
        ("switches", "is not an option"),
        ("--comment=a\n#SBATCH --array=1-2", "is not an option"),
        ("--hold", "given twice"),
        ("-H --nodes=3", "--nodes"),
        ("-H", "--hold is given twice"),
        ("--hol", "--hold is given twice"),
    ],
)
def test_a_scheduler_option_that_hidl_writes_is_rejected(line: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        header("slurm", JobSettings(hold=True, scheduler_options=(line,)))
    problem = caught.value.problems[0]
    assert message in f"{problem.message} {problem.expected}"


def test_an_option_that_the_site_always_sets_is_rejected() -> None:
    with pytest.raises(UsageError, match="--licenses=scratch"):
        header("slurm", SETTINGS["--licenses"], Policies(directives=["--licenses=scratch"]))


@pytest.mark.parametrize(
    ("text", "gib"), [("64G", 64), ("512M", 0.5), ("1T", 1024), ("1.5GiB", 1.5), ("64GB", 64), ("8g", 8)]
)
def test_sizes_of_memory(text: str, gib: float) -> None:
    assert JobOptions(memory=text).memory_gib == gib


@pytest.mark.parametrize("text", ["64", "0G", "-1G", "64X", "G", "0.5M", "0.0001G", ""])
def test_a_size_without_a_unit_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="--mem"):
        _ = JobOptions(memory=text).memory_gib


def test_times_of_begin() -> None:
    assert JobOptions(begin="2026-01-31T18:05").begin_time == SETTINGS["--begin"].begin
    now = datetime.now().timestamp()
    in_an_hour = JobOptions(begin="+1:00:00").begin_time
    tomorrow_at_the_latest = JobOptions(begin="18:00").begin_time
    assert in_an_hour is not None
    assert tomorrow_at_the_latest is not None
    assert 3590 < in_an_hour - now < 3660
    assert 0 < tomorrow_at_the_latest - now <= 90000
    for wrong in ("soon", "25:00", "+x", "2026-13-01"):
        with pytest.raises(UsageError, match="--begin"):
            _ = JobOptions(begin=wrong).begin_time


def anvil(**changes: Any) -> Site:
    site = load_site("anvil")
    return site.model_copy(update={"policies": site.policies.model_copy(update=changes)})


def planned(site: Site | None = None, **options: Any) -> Plan:
    given = {"partition": "gpu", "account": "proj", "time": 3600, **options}
    request = RunRequest(command=["python", "train.py"], uses_mpi=False, hypothetical=True, **given)
    return prepare(request, site or anvil())


def test_one_gpu_of_a_node_is_planned_placed_and_charged_as_a_part() -> None:
    plan = planned(gpus=1, memory="64G", threads=8)
    assert plan.allocation.gpus_per_node == 1
    assert plan.steps[0].placement.ranks == 1
    assert "#SBATCH --gpus-per-node=1" in plan.header
    assert "#SBATCH --cpus-per-task=8" in plan.header
    assert "#SBATCH --mem=65536M" in plan.header
    assert "--exclusive" not in " ".join(plan.header)
    assert "--cpu-bind=cores" in plan.steps[0].launch.argv
    found = estimate(plan, None)
    assert (found.node_hours, found.cost) == (0.25, 0.25 * (plan.charge or 0))


def test_a_part_has_its_share_of_the_cores() -> None:
    whole, part = planned(), planned(gpus=2)
    assert (whole.steps[0].placement.ranks, part.steps[0].placement.ranks) == (4, 2)
    assert whole.steps[0].placement.threads_per_rank == part.steps[0].placement.threads_per_rank
    assert planned(gpus=1, memory="256G").allocation.share == 256 / (anvil().node_type("gpu").memory_gib or 1)
    assert planned(gpus=1, threads=128).allocation.share == 1.0
    assert whole.allocation.share == 1.0


def test_gpus_per_rank_determine_the_ranks() -> None:
    plan = planned(gpus_per_rank=2)
    assert (plan.steps[0].placement.ranks, plan.environment["HIDL_GPUS_PER_RANK"]) == (2, "2")
    plan = planned(gpus_per_rank=2, ranks_per_node=1, nodes=2)
    assert (plan.allocation.gpus_per_node, plan.steps[0].placement.ranks, plan.allocation.share) == (2, 2, 0.5)


@pytest.mark.parametrize(
    ("options", "site_exclusive", "noticed"),
    [
        ({"ranks_per_node": 1}, False, True),
        ({"ranks_per_node": 3}, False, True),
        ({"ranks_per_node": 4}, False, False),
        ({}, False, False),
        ({"ranks_per_node": 1}, True, False),
        ({"ranks_per_node": 1, "gpus_per_rank": 1}, False, False),
        ({"ranks_per_node": 1, "gpus": 4}, False, False),
        ({"ranks_per_node": 1, "device": "cpu"}, False, False),
    ],
)
def test_gpus_that_no_rank_uses_are_mentioned(options: dict[str, Any], site_exclusive: bool, noticed: bool) -> None:
    plan = planned(anvil(exclusive=site_exclusive), **options)
    assert any("requests all 4 GPUs" in warning for warning in plan.warnings) == noticed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 3, "nodes": 2}, "cannot be divided"),
        ({"gpus": 5}, "5 GPUs per node"),
        ({"gpus": 4, "gpus_per_rank": 3}, "1 ranks per node with"),
        ({"gpus": 1, "device": "cpu"}, "computes on CPUs"),
        ({"gpus": 1, "partition": "wholenode"}, "no GPUs"),
        ({"gpus": 1, "exclusive": True}, "cannot be combined"),
        ({"share": True, "exclusive": True}, "cannot be combined"),
        ({"memory": "9T"}, "the nodes have"),
        ({"mail_type": "never"}, "never"),
        ({"licenses": "a:0"}, "--licenses"),
        ({"comment": 'a "b'}, "--comment"),
        ({"job_name": "a b"}, "--job-name"),
        ({"mail_user": "a b"}, "--mail-user"),
    ],
)
def test_what_cannot_be_is_an_error_with_the_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, SubmitRefused), match=message):
        planned(**options)


def test_a_site_of_whole_nodes_refuses_a_part_unless_the_user_shares() -> None:
    with pytest.raises(UsageError, match="whole nodes"):
        planned(anvil(exclusive=True), gpus=1)
    assert "#SBATCH --exclusive" not in planned(anvil(exclusive=True), gpus=1, share=True).header
    assert "#SBATCH --exclusive" in planned(exclusive=True).header


def test_a_launcher_that_counts_cores_from_the_first_one_does_not_bind_on_a_part() -> None:
    site = anvil().model_copy(update={"launchers": ["mpirun"]})
    part, whole = planned(site, gpus=1), planned(site)
    assert (part.steps[0].placement.bind, whole.steps[0].placement.bind) == (False, True)
    assert any("part of a node" in warning for warning in part.warnings)


@pytest.mark.parametrize(
    ("site", "options"),
    [
        ("lassen", {"memory": "4G"}),
        ("lassen", {"gpus": 1}),
        ("lassen", {"share": True}),
        ("lassen", {"comment": "x"}),
        ("lassen", {"mail_type": "fail"}),
        ("tuolumne", {"memory": "4G"}),
        ("tuolumne", {"licenses": "a"}),
        ("polaris", {"comment": "x"}),
        ("local", {"hold": True}),
        ("local", {"scheduler_options": ["--hold"]}),
    ],
)
def test_an_option_that_the_scheduler_lacks_is_refused_by_name(site: str, options: dict[str, Any]) -> None:
    request = RunRequest(command=["true"], uses_mpi=False, hypothetical=True, account="a", **options)
    with pytest.raises(HidlError):
        prepare(request, load_site(site))


def test_a_site_can_forbid_options() -> None:
    with pytest.raises(UsageError, match="does not accept --hold"):
        planned(anvil(forbidden=["--hold"]), hold=True)


def test_flux_requests_slots_for_a_part() -> None:
    plan = prepare(
        RunRequest(command=["true"], uses_mpi=False, hypothetical=True, account="a", gpus=2, share=True, threads=8),
        load_site("tuolumne"),
    )
    assert {"# flux: --nslots=1", "# flux: --cores-per-slot=16", "# flux: --gpus-per-slot=2"} <= set(plan.header)
    assert "# flux: --exclusive" not in plan.header


def test_the_command_line_has_the_options(hidl: Hidl) -> None:
    done = hidl(
        *["run", "--site", "anvil", "-p", "gpu", "--account", "proj", "--no-mpi", "--no-check", "--dry-run", "--json"],
        *[
            "--gpus",
            "1",
            "--mem",
            "64G",
            "--hold",
            "--comment",
            "two words",
            "--job-name",
            "mine",
            "--mail-type",
            "all",
        ],
        *["--licenses", "a:2", "--begin", "2026-01-31T18:05", "--scheduler-option=--switches=1"],
        *["--", "python", "train.py"],
    )
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)["plan"]["header"]
    assert {"#SBATCH --job-name=mine", "#SBATCH --hold", '#SBATCH --comment="two words"'} <= set(lines)
    assert {"#SBATCH --switches=1", "#SBATCH --licenses=a:2", "#SBATCH --gpus-per-node=1"} <= set(lines)


def test_forbidden_options_are_checked_in_site_files(hidl: Hidl) -> None:
    file = hidl.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    document = {"name": "mine", "title": "t", "extends": "anvil", "policies": {"forbidden": ["--helo"]}}
    file.write_text(yaml.safe_dump(document))
    done = hidl("site", "check", "mine")
    assert done.returncode == 3
    assert "--hold" in done.stderr


def test_variables_of_checkpoints_can_be_set() -> None:
    variables = ["HIDL_CHECKPOINT_INTERVAL=60", "HIDL_CHECKPOINT_KEEP=3", "BASH_ENV=/x"]
    assert {word.partition("=")[0] for word in variables} <= planned(env_vars=variables).environment.keys()


def test_variables_of_the_user_are_set_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_TAKEN", "taken")
    plan = planned(env_vars=["OWN=a b", "OWN_TAKEN", "EMPTY="])
    assert {name: plan.environment[name] for name in ("OWN", "OWN_TAKEN", "EMPTY")} == {
        "OWN": "a b",
        "OWN_TAKEN": "taken",
        "EMPTY": "",
    }
    assert planned(env_vars={"OWN": "x", "OWN_TAKEN": None}).environment["OWN_TAKEN"] == "taken"
    site = anvil(environment={"OWN": "of the site"})
    assert planned(site, env_vars=["OWN=mine"]).environment["OWN"] == "mine"


@pytest.mark.parametrize(
    "word",
    [
        *("RANK=0", "OMP_NUM_THREADS=2", "SLURM_NTASKS=3", "HIDL_RUN_ID=x", "HIDL_CHECKPOINT=/x", "PATH=/x", "a-b=1"),
        *("=1", "UNSET_9", "UID=1", "SHELLOPTS=x", "IFS=,", "BASH_ARGV=x"),
    ],
)
def test_variables_that_are_set_for_each_rank_are_rejected(word: str) -> None:
    with pytest.raises(UsageError, match="--env-var"):
        planned(env_vars=[word])
