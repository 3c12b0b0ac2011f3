"""``hidl site new`` as a user meets it: on a machine without a scheduler, and on a real Slurm."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import LivingCluster

pytestmark = pytest.mark.real

HERE = os.uname().nodename


@pytest.fixture
def laptop(hidl: Any, tmp_path: Path) -> Any:
    """hidl on a machine without a scheduler: of its programs, none is on the PATH."""
    (tmp_path / "bin").mkdir()
    hidl.environment["PATH"] = str(tmp_path / "bin")
    return hidl


@pytest.fixture
def on_cluster(hidl: Any, cluster: LivingCluster) -> Any:
    """hidl where a real Slurm answers."""
    hidl.environment.update(cluster.environment)
    return hidl


def test_a_machine_without_a_scheduler_extends_local(laptop: Any) -> None:
    done = laptop("site", "new", "mine")
    file = laptop.config / "sites" / "mine.yaml"

    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(file.read_text())["extends"] == "local"
    assert f"drafted {file}" in done.stderr
    assert "next:" in done.stderr


def test_what_it_drafts_is_in_order_and_detected_at_once(laptop: Any) -> None:
    laptop("site", "new", "mine")

    assert laptop("site", "check", "mine").returncode == 0
    assert laptop.json("site", "detect")["site"] == "mine"


def test_the_name_is_the_hosts_where_none_is_given(laptop: Any) -> None:
    assert laptop.json("site", "new")["name"] == HERE.partition(".")[0].lower()


def test_a_file_that_is_there_is_overwritten_only_by_force(laptop: Any) -> None:
    file = laptop.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: mine\n")

    refused = laptop("site", "new", "mine")
    kept = file.read_text()
    forced = laptop("site", "new", "mine", "--force")

    assert (refused.returncode, kept, forced.returncode) == (2, "name: mine\n", 0)
    assert "--force" in refused.stderr
    assert "extends: local" in file.read_text()


def test_it_can_be_printed_and_nothing_is_written(laptop: Any) -> None:
    done = laptop("site", "new", "mine", "--output", "-")

    assert yaml.safe_load(done.stdout)["name"] == "mine"
    assert not (laptop.config / "sites").exists()


def test_it_can_be_written_elsewhere(laptop: Any, tmp_path: Path) -> None:
    file = tmp_path / "there" / "other.yaml"

    done = laptop("site", "new", "--output", str(file))

    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(file.read_text())["name"] == "other"
    assert f"hidl site check {file}" in done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_into_a_directory_it_goes_under_the_sites_name(laptop: Any, tmp_path: Path) -> None:
    laptop("site", "new", "mine", "--output", str(tmp_path))

    assert (tmp_path / "mine.yaml").is_file()


@pytest.mark.parametrize(
    "arguments",
    [["Upper"], ["a b"], ["../x"], ["mine", "--output", "other.yaml"], ["--output", "mine.txt"], [""]],
)
def test_names_and_files_that_no_site_can_have_end_with_2(laptop: Any, arguments: list[str]) -> None:
    done = laptop("site", "new", *arguments)

    assert (done.returncode, "next:" in done.stderr) == (2, True)
    assert not (laptop.config / "sites").exists()


def test_a_place_that_cannot_be_written_is_reported_with_a_way_out(laptop: Any) -> None:
    done = laptop("site", "new", "--output", "/proc/mine.yaml")

    assert done.returncode == 1
    assert "/proc/mine.yaml cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_the_same_name_that_it_hides_is_named(laptop: Any) -> None:
    done = laptop("site", "new", "frontera")

    assert "it takes precedence over" in done.stderr
    assert "site_configs/frontera.yaml" in done.stderr


def test_a_shipped_site_is_not_hidden_unasked(laptop: Any, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "scontrol"
    program.write_text("#!/bin/sh\n[ \"$2\" = config ] && echo 'ClusterName = frontera'; exit 0\n")
    program.chmod(0o755)

    assert laptop.json("site", "new")["name"] == "frontera-draft"
    assert laptop.json("site", "new", "frontera")["name"] == "frontera"


def test_a_scheduler_that_gives_no_answer_ends_with_7_and_a_way_out(laptop: Any, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "scontrol"
    program.write_text("#!/bin/sh\necho 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2; exit 1\n")
    program.chmod(0o755)

    done, alone = laptop("site", "new", "mine"), laptop("site", "new", "mine", "--alone")

    assert (done.returncode, alone.returncode) == (7, 0)
    assert "Unable to contact slurm controller" in done.stderr
    assert "--alone" in done.stderr


def test_a_scheduler_on_an_unknown_machine_leads_to_a_draft(laptop: Any, tmp_path: Path) -> None:
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "scontrol").chmod(0o755)

    assert "`hidl site new` drafts a site file for this cluster" in laptop("site", "detect").stderr
    assert laptop.json("site", "detect")["schedulers"] == {"Slurm": "scontrol"}


# --- on a real Slurm --------------------------------------------------------------------------------------------------


def test_the_draft_of_a_real_slurm_is_in_order(on_cluster: Any) -> None:
    done = on_cluster("site", "new", "mine")
    checked = on_cluster("site", "check", "mine")

    assert (done.returncode, checked.returncode) == (0, 0), done.stderr + checked.stderr


def test_it_holds_what_that_slurm_was_reported(on_cluster: Any, cluster: LivingCluster) -> None:
    on_cluster("site", "new", "mine")
    site = on_cluster.json("site", "show", "mine")["site"]

    assert (site["scheduler"], site["launchers"][0], site["default_partition"]) == ("slurm", "srun", "debug")
    assert {name: (part["max_nodes"], part["max_wall"]) for name, part in site["partitions"].items()} == {
        "debug": (None, "01:00:00"),
        "small": (2, "00:05:00"),
    }
    (node_type,) = site["node_types"].values()
    assert node_type["cores"] == int(cluster("sinfo", "--noheader", "--format=%c", "--partition=small").stdout)
    assert node_type["count"] == len(cluster.nodes)


def test_its_cluster_is_recognised_by_the_name_that_slurm_gives_it(on_cluster: Any) -> None:
    on_cluster("site", "new", "mine")

    found = {site["site"]: site for site in on_cluster.json("site", "detect")["sites"]}["mine"]

    assert found["matched"], found["reasons"]
    assert [condition["subject"] for condition in found["conditions"]] == ["host name", "the scheduler's cluster name"]


def test_a_run_on_it_can_be_planned(on_cluster: Any, hidl_with: Any, cluster: LivingCluster) -> None:
    hidl = hidl_with("mpi")
    hidl.environment.update(cluster.environment)
    hidl.add_workload("toy", "toy.py")
    hidl("site", "new", "mine")

    done = hidl("run", "toy", "--site", "mine", "--nodes", "2", "--dry-run")

    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=2" in done.stdout
    assert "#SBATCH --cpus-per-task" in done.stdout
