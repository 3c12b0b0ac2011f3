"""``hidl tuning`` as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

SITE = """\
name: mine
title: A cluster
scheduler: local
launchers: [mpiexec]
node_types: {cpu: {cores: 8}}
partitions: {normal: {node_type: cpu}}
default_partition: normal
mpi:
  gdr: {family: mvapich2-gdr, tuning: {MV2_GPUDIRECT_GDRCOPY_LIB: /opt/gdrcopy/lib/libgdrapi.so}}
"""


def names(hidl: Any, *arguments: str) -> list[str]:
    return [variable["name"] for variable in hidl.json("tuning", "list", *arguments)["variables"]]


def test_list_tells_what_each_variable_takes_and_who_reads_it(hidl: Any) -> None:
    document = hidl.json("tuning", "list", "MV2_USE_CUD?")

    assert document["schema"] == "hidl.tuning-list/1"
    assert document["variables"] == [
        {
            "name": "MV2_USE_CUDA",
            "type": "bool",
            "values": None,
            "default": "0",
            "readers": [{"family": "mvapich2", "versions": None}, {"family": "mvapich2-gdr", "versions": None}],
            "meaning": "enable CUDA device buffers in MPI calls",
        }
    ]


def test_list_for_a_family_holds_what_it_reads(hidl: Any) -> None:
    found = names(hidl, "--mpi", "mvapich-plus")

    assert "MPIR_CVAR_ENABLE_GPU" in found
    assert not [name for name in found if name.startswith("MV2_")]


def test_list_for_a_version_leaves_out_what_is_newer(hidl: Any) -> None:
    assert "MV2_ENABLE_SHARP_REDUCE" in names(hidl, "SHARP", "--mpi", "mvapich2@2.3.7")
    assert "MV2_ENABLE_SHARP_REDUCE" not in names(hidl, "SHARP", "--mpi", "mvapich2@2.3.5")


def test_list_leaves_out_what_the_launcher_sets(hidl: Any) -> None:
    assert "MV2_COMM_WORLD_RANK" not in names(hidl, "--mpi", "mvapich2")


def test_list_finds_words_of_a_meaning_and_patterns(hidl: Any) -> None:
    assert "MV2_USE_GDRCOPY" in names(hidl, "small-message path")
    assert all(name.startswith("MV2_CUDA_") for name in names(hidl, "MV2_CUDA_*"))


def test_list_is_a_table_with_whole_names(hidl: Any) -> None:
    lines = hidl("tuning", "list", "gdrcopy").stdout.splitlines()

    assert lines[0].split() == ["name", "takes", "default", "read", "by", "meaning"]
    assert any(line.split()[:3] == ["MV2_GDRCOPY_LIMIT", "size", "8192"] for line in lines)


def test_list_of_a_family_that_there_is_none_of(hidl: Any) -> None:
    completed = hidl("tuning", "list", "--mpi", "mvapich3")

    assert completed.returncode == 2
    assert "did you mean mvapich" in completed.stderr


def test_list_of_nothing_says_so(hidl: Any) -> None:
    completed = hidl("tuning", "list", "xyzzy")

    assert (completed.returncode, completed.stdout, completed.stderr.strip()) == (0, "", "none")


def test_explain_tells_all_that_is_known(hidl: Any) -> None:
    (document,) = hidl.json("tuning", "explain", "MV2_USE_CUDA")["variables"]
    (row,) = document["variables"]

    assert row["takes"] == "0 or 1"
    assert row["provenance"] == "MVAPICH2 2.3.7-1 source, parameter table; MVAPICH2-GDR 2.3.7 user guide"
    assert {"families": ["mpich"], "variable": "MPIR_CVAR_ENABLE_GPU"}.items() <= document["counterparts"][1].items()
    assert document["presets"][0]["family"] == "mvapich2-gdr"


def test_explain_knows_a_variable_by_each_of_its_names(hidl: Any) -> None:
    (document,) = hidl.json("tuning", "explain", "MVP_ENABLE_GPU")["variables"]

    assert document["variables"][0]["name"] == "MPIR_CVAR_ENABLE_GPU"
    assert document["variables"][0]["also"] == ["MVP_ENABLE_GPU", "MPICH_ENABLE_GPU"]


def test_explain_tells_which_sites_set_it(hidl: Any) -> None:
    file = hidl.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(SITE)

    (document,) = hidl.json("tuning", "explain", "MV2_GPUDIRECT_GDRCOPY_LIB")["variables"]

    assert {"site": "mine", "mpi": "gdr", "value": "/opt/gdrcopy/lib/libgdrapi.so"} in document["sites"]


def test_explain_tells_what_is_known_by_its_prefix(hidl: Any) -> None:
    completed = hidl("tuning", "explain", "UCX_TLS", "MV2_SUPPORT_DL")

    assert completed.returncode == 0
    assert "all of UCX_* is known by its prefix alone" in completed.stdout
    assert "preset of mvapich2-gdr" in completed.stdout


def test_explain_of_an_unknown_name_tells_the_nearest(hidl: Any) -> None:
    completed = hidl("tuning", "explain", "MV2_USE_CDUA")

    assert (completed.returncode, completed.stdout) == (2, "")
    assert "did you mean MV2_USE_CUDA?" in completed.stderr


def test_names_are_completed(hidl: Any) -> None:
    variables = {"_HIDL_COMPLETE": "complete_bash", "COMP_WORDS": "hidl tuning explain MV2_USE_CU", "COMP_CWORD": "3"}
    script = "import sys\nsys.argv[0] = 'hidl'\nfrom hidl_cli.commands.app import app\napp(prog_name='hidl')"
    done = subprocess.run(
        [sys.executable, "-c", script], env=hidl.environment | variables, capture_output=True, text=True, check=False
    )

    assert done.stdout.split() == ["MV2_USE_CUDA"]


def test_site_check_marks_tuning_that_does_not_fit(hidl: Any) -> None:
    file = hidl.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(SITE.replace("MV2_GPUDIRECT_GDRCOPY_LIB: /opt/gdrcopy/lib/libgdrapi.so", "MV2_USE_CUDA: maybe"))

    completed = hidl("site", "check", "mine")

    assert completed.returncode == 3
    assert "= expected: 0 or 1" in completed.stderr
