"""``hidl site`` as a user meets it: data on stdout, findings on stderr, exit codes, one JSON document."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

pytestmark = pytest.mark.real

SITE = """\
name: {name}
title: A cluster
{match}scheduler: local
launchers: [mpiexec]
node_types:
  cpu: {{cores: 56}}
partitions:
  normal: {{node_type: cpu}}
default_partition: normal
"""


def put(hidl: Any, name: str, match: str = "", change: tuple[str, str] = ("", "")) -> Path:
    file: Path = hidl.config / "sites" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SITE.format(name=name, match=match).replace(*change))
    return file


def test_list_reports_each_site_and_where_it_comes_from(hidl: Any) -> None:
    file = put(hidl, "mine")
    put(hidl, "broken", change=("title", "titel"))

    document = hidl.json("site", "list")
    sites = {site["name"]: site for site in document["sites"]}

    assert document["schema"] == "hidl.site-list/1"
    assert sites["mine"] == {
        "name": "mine",
        "title": "A cluster",
        "status": "in-service",
        "scheduler": "local",
        "launchers": ["mpiexec"],
        "runs": True,
        "why_not": None,
        "origin": "user",
        "file": str(file),
    }
    assert sites["local"]["origin"] == "shipped"
    assert sites["broken"]["status"] == "faulty"
    assert "mine" in hidl("site", "list").stdout


def test_list_marks_what_is_retired_and_what_is_unknown(hidl: Any) -> None:
    rows = {line.split()[0]: line.split() for line in hidl("site", "list", COLUMNS="200").stdout.splitlines()}

    assert rows["summit"][1:4] == ["retired", "lsf", "jsrun"]
    assert rows["lassen"][1] == "unknown"
    assert rows["summit"][4] == "yes"


def test_list_check_and_run_say_in_the_same_words_why_a_site_cannot_run_jobs(hidl: Any) -> None:
    put(hidl, "mine", change=("scheduler: local", "scheduler: pjm"))
    put(hidl, "nobody", change=("scheduler: local", "scheduler: null"))
    put(hidl, "none", change=("[mpiexec]", "[]"))
    reasons = {"mine": "scheduler pjm not supported yet", "nobody": "unknown scheduler", "none": "unknown launcher"}
    listed = {site["name"]: site["why_not"] for site in hidl.json("site", "list")["sites"]}

    for (name, reason), code in zip(reasons.items(), (4, 3, 2), strict=True):
        refused = hidl("run", "mpi-sanity", "--site", name, "--dry-run")
        assert (refused.returncode, f"error: site {name}: {reason}\n" in refused.stderr) == (code, True)
        assert listed[name] == reason
        assert f"  cannot run jobs: {reason}\n" in hidl("site", "check", name).stdout
        assert hidl.json("site", "check", name)["sites"][0]["why_not"] == reason


def test_a_base_is_not_a_site_to_be_listed_shown_or_checked(hidl: Any) -> None:
    names = [site["name"] for site in hidl.json("site", "list")["sites"]]

    assert not [name for name in names if name.startswith("_")]
    assert hidl("site", "show", "_tacc").returncode == 2
    refused = hidl("site", "check", "site_configs/_tacc.yaml")
    assert (refused.returncode, "is a base" in refused.stderr) == (2, True)


def test_check_without_a_name_counts_what_is_unknown_a_line_for_each_site(hidl: Any) -> None:
    done = hidl("site", "check")

    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == len(hidl.json("site", "list")["sites"])
    assert "frontera: valid\n" in done.stdout
    assert "frontier: valid, 1 unknown\n" in done.stdout
    assert "hidl site check NAME" in done.stderr


def test_show_is_yaml_with_the_files_that_it_comes_from(hidl: Any) -> None:
    put(hidl, "base")
    (hidl.config / "sites" / "mine.yaml").write_text("name: mine\nextends: base\nnode_types: {cpu: {gpus: 4}}\n")

    shown = hidl("site", "show", "mine").stdout
    site = yaml.safe_load(shown)

    assert site["node_types"]["cpu"]["cores"] == 56
    assert site["node_types"]["cpu"]["gpus"] == 4
    assert shown.splitlines()[:2] == [f"# from {hidl.config}/sites/{name}.yaml" for name in ("mine", "base")]


def test_show_holds_what_was_detected(hidl: Any) -> None:
    document = hidl.json("site", "show", "local")

    assert document["schema"] == "hidl.site/1"
    assert document["site"]["node_types"]["host"]["cores"] >= 1


def test_check_of_good_files_ends_with_0_and_names_what_is_unknown(hidl: Any) -> None:
    put(hidl, "mine")

    done = hidl("site", "check", "mine")

    assert (done.returncode, done.stderr) == (0, "")
    assert "mine: valid" in done.stdout
    assert "  unknown: node_types.cpu.memory_gib\n" in done.stdout
    assert "partitions.normal.max_wall" in hidl.json("site", "check", "mine")["sites"][0]["unknown"]


def test_check_of_faulty_files_ends_with_3_and_shows_every_finding(hidl: Any, tmp_path: Path) -> None:
    put(hidl, "mine", change=("cores", "coers"))
    other = tmp_path / "other.yaml"
    other.write_text(SITE.format(name="other", match="").replace("node_type: cpu", "node_type: gpu"))

    done = hidl("site", "check", "mine", str(other), "local")

    assert done.returncode == 3
    assert [line.split(" (")[0] for line in done.stdout.splitlines() if line[0] != " "] == [
        "mine: 1 error",
        "other: 1 error",
        "local: valid",
    ]
    assert "6 |   cpu: {coers: 56}" in done.stderr
    assert "^^^^^ did you mean `cores`?" in done.stderr
    assert f"{other}:8:23" in done.stderr.replace("\n", "")


def test_check_as_json_carries_the_findings_and_the_exit_code(hidl: Any) -> None:
    file = put(hidl, "mine", change=("cores", "coers"))

    document = hidl.json("site", "check", status=3)
    (finding,) = next(site["findings"] for site in document["sites"] if site["name"] == "mine")

    assert document["ok"] is False
    assert (finding["file"], finding["line"], finding["column"]) == (str(file), 6, 9)
    assert finding["suggestion"] == "cores"


def test_an_unknown_site_ends_with_2_and_the_nearest_name(hidl: Any) -> None:
    done = hidl("site", "show", "lcoal")

    assert done.returncode == 2
    assert "did you mean 'local'?" in done.stderr


def test_detect_explains_each_site_and_names_the_one_found(hidl: Any) -> None:
    put(hidl, "mine", match=f"match: {{hostname: '{os.uname().nodename}', env: {{HERE: 'y.s'}}}}\n")
    put(hidl, "other", match="match: {env: {NOT_SET_ANYWHERE: x}}\n")

    found = json.loads(hidl("site", "detect", "--json", HERE="yes").stdout)
    sites = {site["site"]: site for site in found["sites"]}

    assert (found["site"], found["detected"]) == ("mine", True)
    assert sites["mine"]["matched"] is True
    assert sites["other"]["reasons"] == ["$NOT_SET_ANYWHERE is not set"]
    assert found["machine"]["cores"] >= 1
    assert "no site matches; hidl uses `local`" in hidl("site", "detect").stderr


def test_two_sites_that_match_end_with_3_and_both_names(hidl: Any) -> None:
    for name in ("one", "two"):
        put(hidl, name, match="match: {hostname: '.*'}\n")

    done = hidl("site", "detect")

    assert done.returncode == 3
    assert "one and two" in done.stderr
    assert "--site" in done.stderr


def test_hostile_text_in_a_file_does_not_reach_the_terminal(hidl: Any) -> None:
    file = put(hidl, "mine")
    file.write_bytes(file.read_bytes().replace(b"cores: 56", b"cores: \xe2\x80\xae\xc2\x9b31m"))

    done = hidl("site", "check", "mine")

    assert done.returncode == 3
    assert "\u202e" not in done.stderr
    assert "\x9b" not in done.stderr


def test_schema_is_the_json_schema_of_a_site_file(hidl: Any) -> None:
    document = json.loads(hidl("site", "schema").stdout)

    jsonschema.Draft202012Validator(document).validate(yaml.safe_load(SITE.format(name="x", match="")))
