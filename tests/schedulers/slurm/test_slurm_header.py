"""The ``#SBATCH`` lines, policy by policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.launch.placement import Allocation
from hidl_cli.schedulers.slurm import header, options_of
from hidl_cli.site.schema import Policies

PLAIN = Allocation(job_name="hidl-toy", nodes=4, ranks_per_node=8)
FULL = replace(
    PLAIN,
    cores_per_rank=2,
    gpus_per_node=4,
    memory_gib=192,
    time_limit=5400,
    queue="normal",
    account="ABC123",
    qos="high",
    constraint="[rack1|rack2]&v100",
    reservation="maint",
)


def lines(allocation: Allocation = FULL, **policies: Any) -> tuple[str, ...]:
    return header(allocation, Policies.model_validate({"cpus": "none", **policies}))


def test_a_plain_allocation_says_no_more_than_it_must() -> None:
    assert lines(PLAIN) == (
        "#SBATCH --job-name=hidl-toy",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --output=stdout.log",
        "#SBATCH --error=stderr.log",
        "#SBATCH --open-mode=append",
    )


def test_all_that_can_be_asked_for_is_said_in_this_order() -> None:
    policies = {"cpus": "cpus-per-task", "memory": "mem", "gpus": "gres", "export": "none", "exclusive": True}
    assert lines(FULL, **policies, directives=["--hint=nomultithread", "-x node7"]) == (
        "#SBATCH --job-name=hidl-toy",
        "#SBATCH --partition=normal",
        "#SBATCH --time=01:30:00",
        "#SBATCH --account=ABC123",
        "#SBATCH --qos=high",
        "#SBATCH --constraint=[rack1|rack2]&v100",
        "#SBATCH --reservation=maint",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --mem=196608M",
        "#SBATCH --gres=gpu:4",
        "#SBATCH --export=NONE",
        "#SBATCH --output=stdout.log",
        "#SBATCH --error=stderr.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --exclusive",
        "#SBATCH --hint=nomultithread",
        "#SBATCH -x node7",
    )


@pytest.mark.parametrize(
    ("policies", "line"),
    [
        ({"cpus": "cpus-per-task"}, "--cpus-per-task=2"),
        ({"memory": "mem"}, "--mem=196608M"),
        ({"memory": "mem-per-cpu"}, "--mem-per-cpu=12288M"),
        ({"memory": "all"}, "--mem=0"),
        ({"gpus": "gres"}, "--gres=gpu:4"),
        ({"gpus": "gpus-per-node"}, "--gpus-per-node=4"),
        ({"export": "all"}, "--export=ALL"),
        ({"export": "none"}, "--export=NONE"),
        ({"exclusive": True}, "--exclusive"),
        ({"directives": ["--ntasks=1"]}, "--ntasks=1"),
    ],
)
def test_a_policy_adds_its_line_and_no_other(policies: dict[str, Any], line: str) -> None:
    assert set(lines(FULL, **policies)) - set(lines()) == {f"#SBATCH {line}"}


@pytest.mark.parametrize(
    ("policies", "option"),
    [
        ({"partition": "never"}, "partition"),
        ({"time": "never"}, "time"),
        ({"account": "never"}, "account"),
        ({"qos": "never"}, "qos"),
        ({"constraint": "never"}, "constraint"),
        ({"reservation": "never"}, "reservation"),
        ({"tasks": "none"}, "ntasks-per-node"),
    ],
)
def test_a_policy_takes_its_line_away_and_no_other(policies: dict[str, Any], option: str) -> None:
    (gone,) = set(lines()) - set(lines(FULL, **policies))
    assert gone.startswith(f"#SBATCH --{option}=")


@pytest.mark.parametrize(
    ("policies", "line"),
    [({"memory": "mem"}, "#SBATCH --mem=0"), ({"memory": "mem-per-cpu"}, None), ({"gpus": "gres"}, None)],
)
def test_what_is_not_known_of_the_node_is_not_made_up(policies: dict[str, Any], line: str | None) -> None:
    assert set(lines(PLAIN, **policies)) - set(lines(PLAIN)) == ({line} if line else set())


@pytest.mark.parametrize(
    ("seconds", "time"), [(1, "00:01:00"), (60, "00:01:00"), (61, "00:02:00"), (172800, "48:00:00")]
)
def test_time_limits_are_whole_minutes_and_never_less_than_asked(seconds: float, time: str) -> None:
    assert f"#SBATCH --time={time}" in lines(replace(PLAIN, time_limit=seconds))


def test_a_name_with_blanks_and_quotes_is_one_word() -> None:
    assert lines(replace(PLAIN, job_name='a "b" #c \\ d'))[0] == r'#SBATCH --job-name="a \"b\" #c \\ d"'


@given(st.from_regex(r"[A-Za-z0-9_.:@+/-]{1,20}", fullmatch=True))
def test_a_plain_name_needs_no_quotes_and_is_read_back(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    script = tmp_path_factory.getbasetemp() / "job.sh"
    script.write_text("\n".join(["#!/bin/bash", *lines(replace(PLAIN, account=name))]))
    assert options_of(script)["account"] == name


def test_short_options_among_the_sites_lines_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH -p small\n#SBATCH -N2\n")
    assert options_of(tmp_path / "job.sh") == {"partition": "small", "nodes": "2"}
