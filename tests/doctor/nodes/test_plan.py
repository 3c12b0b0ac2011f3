"""The examining job's script, for real systems: well-formed, and harmless where the site refuses much."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from hidl_cli.doctor.nodes import Examination, plan_examination, read_facts
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.site.load import load_site
from hidl_cli.stack.installation import Installation
from tests.conftest import SHELLCHECK

TYPES = ("none", "pmi2", "pmix", "pmix_v4", "cray_shasta")


@pytest.fixture(autouse=True)
def no_configuration(config: Path) -> None:
    """Shipped sites alone."""


def planned(site: str, *, stack: str = "mpi", nodes: int = 2) -> Examination:
    installation = Installation.at(Path(f"/apps/it's here/{stack}/0123456789ab"))
    return plan_examination(load_site(site), installation, nodes, AllocationOptions(account="abc"), types=TYPES)


@pytest.mark.parametrize("site", ["local", "test-cluster", "frontera-rtx", "perlmutter", "summit"])
def test_the_scripts_are_well_formed(site: str, tmp_path: Path) -> None:
    asked = planned(site, nodes=1 if site == "local" else 2)
    (tmp_path / "job.sh").write_text(asked.script())
    (tmp_path / "probe.sh").write_text(asked.probe())
    job = subprocess.run([SHELLCHECK, tmp_path / "job.sh"], capture_output=True, text=True, check=False)
    probe = subprocess.run([SHELLCHECK, "-s", "sh", tmp_path / "probe.sh"], capture_output=True, text=True, check=False)
    assert (job.stdout, probe.stdout) == ("", "")


def test_every_launcher_that_serves_the_library_is_tried_and_srun_with_each_type() -> None:
    assert [attempt.label for attempt in planned("test-cluster").attempts] == [
        "srun --mpi=pmi2",
        "srun --mpi=none",
        "srun --mpi=pmix",
        "mpiexec",
    ]


def test_what_hidl_would_launch_itself_is_distinguished() -> None:
    assert [attempt.is_default for attempt in planned("test-cluster").attempts] == [True, False, False, True]


def test_ssh_is_looked_at_where_mpirun_rsh_is_a_launcher() -> None:
    assert [planned(site).ssh for site in ("test-cluster", "frontera-rtx")] == [False, True]


def test_without_a_stack_nodes_alone_are_looked_at() -> None:
    asked = plan_examination(load_site("test-cluster"), None, 4, AllocationOptions())
    assert (asked.attempts, asked.plan.steps, "begin_step '" in asked.script()) == ((), (), False)


def test_no_script_for_tacc_names_a_node() -> None:
    refused = r"--nodelist|--exclude|\s-w\s|\s-x\s|--mem\b|--gres"
    assert re.findall(refused, re.sub(r"\[\[ .* \]\]", "", planned("frontera-rtx").script())) == []


def test_a_small_allocation_gets_fewer_ranks() -> None:
    installation = Installation.at(Path("/apps/mpi/0123456789ab"))
    asked = plan_examination(load_site("test-cluster"), installation, 2, AllocationOptions(), cores=1)
    assert [attempt.ranks for attempt in asked.attempts] == [2, 2]


def test_a_node_without_any_python_still_answers(tmp_path: Path) -> None:
    for name in ("uname", "date"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")
    completed = subprocess.run(
        ["/bin/sh", "-s"],
        input=planned("local", nodes=1).probe(),
        env={"PATH": str(tmp_path)},
        text=True,
        capture_output=True,
        check=True,
    )
    told = json.loads(completed.stdout)
    assert (told["host"], told["told_by"], told["stack"]["seen"]) == (os.uname().nodename, "sh", False)


def test_a_node_without_the_stack_reports_by_the_systems_python() -> None:
    completed = subprocess.run(
        ["sh", "-s"], input=planned("local", nodes=1).probe(), text=True, capture_output=True, check=True
    )
    assert json.loads(completed.stdout)["told_by"] == "system"


def test_no_fact_contains_part_of_a_secret(tmp_path: Path) -> None:
    """Outputs are cut at their beginnings, those of the nodes at the end."""
    examination = planned("frontera-rtx")
    early = f"connect --token N0deSecret9xK2\n{'step ' * 398}"
    late = f"connect --token N0deSecret9xK2\n{'step ' * 391}sent N0deSecret9xK2\n"
    files = {"hosts": "n0\nn1\n", "nodes.err": late, "steps/1/stderr.log": early, "ssh/n1.said": early}
    for name, text in {**files, "ssh/n1.status": "255\n"}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    facts = read_facts(tmp_path, examination, outside=None)
    outputs = [facts.launches[0].output, facts.ssh[0].output, facts.nodes.said]
    assert [output[-4:] for output in outputs[:2]] == ["step", "step"]
    assert not [output for output in outputs if "cret9" in output or "N0de" in output]
