"""``hidl tuning`` as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import Hidl

pytestmark = pytest.mark.real

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


def test_list_shows_type_values_and_readers(hidl: Any) -> None:
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


def test_list_of_a_family(hidl: Any) -> None:
    found = names(hidl, "--mpi", "mvapich-plus")

    assert "MPIR_CVAR_ENABLE_GPU" in found
    assert not [name for name in found if name.startswith("MV2_")]


def test_list_of_a_version_omits_newer_variables(hidl: Any) -> None:
    assert "MV2_ENABLE_SHARP_REDUCE" in names(hidl, "SHARP", "--mpi", "mvapich2@2.3.7")
    assert "MV2_ENABLE_SHARP_REDUCE" not in names(hidl, "SHARP", "--mpi", "mvapich2@2.3.5")


def test_list_omits_variables_set_by_the_launcher(hidl: Any) -> None:
    assert "MV2_COMM_WORLD_RANK" not in names(hidl, "--mpi", "mvapich2")


def test_list_matches_meanings_and_patterns(hidl: Any) -> None:
    assert "MV2_USE_GDRCOPY" in names(hidl, "small-message path")
    assert all(name.startswith("MV2_CUDA_") for name in names(hidl, "MV2_CUDA_*"))


def test_list_never_truncates_names(hidl: Any) -> None:
    lines = hidl("tuning", "list", "gdrcopy").stdout.splitlines()

    assert lines[0].split() == ["name", "takes", "default", "read", "by", "meaning"]
    assert any(line.split()[:3] == ["MV2_GDRCOPY_LIMIT", "size", "8192"] for line in lines)


def test_list_of_an_unknown_family_is_a_usage_error(hidl: Any) -> None:
    completed = hidl("tuning", "list", "--mpi", "mvapich3")

    assert completed.returncode == 2
    assert "did you mean mvapich" in completed.stderr


def test_an_empty_list_says_so(hidl: Any) -> None:
    completed = hidl("tuning", "list", "xyzzy")

    assert (completed.returncode, completed.stdout, completed.stderr.strip()) == (0, "", "none")


def test_explain_shows_everything(hidl: Any) -> None:
    (document,) = hidl.json("tuning", "explain", "MV2_USE_CUDA")["variables"]
    (row,) = document["variables"]

    assert row["takes"] == "0 or 1"
    assert row["provenance"] == "MVAPICH2 2.3.7-1 source, parameter table; MVAPICH2-GDR 2.3.7 user guide"
    assert {"families": ["mpich"], "variable": "MPIR_CVAR_ENABLE_GPU"}.items() <= document["counterparts"][1].items()
    assert document["presets"][0]["family"] == "mvapich2-gdr"


def test_explain_accepts_any_name_of_a_variable(hidl: Any) -> None:
    (document,) = hidl.json("tuning", "explain", "MVP_ENABLE_GPU")["variables"]

    assert document["variables"][0]["name"] == "MPIR_CVAR_ENABLE_GPU"
    assert document["variables"][0]["also"] == ["MVP_ENABLE_GPU", "MPICH_ENABLE_GPU"]


def test_explain_lists_the_sites_that_set_it(hidl: Any) -> None:
    file = hidl.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(SITE)

    (document,) = hidl.json("tuning", "explain", "MV2_GPUDIRECT_GDRCOPY_LIB")["variables"]

    assert {"site": "mine", "mpi": "gdr", "value": "/opt/gdrcopy/lib/libgdrapi.so", "why": ""} in document["sites"]


def test_explain_of_a_name_with_an_open_prefix(hidl: Any) -> None:
    completed = hidl("tuning", "explain", "UCX_TLS", "MV2_SUPPORT_DL")

    assert completed.returncode == 0
    assert "any: every UCX_* is accepted" in completed.stdout
    assert "preset of mvapich2-gdr" in completed.stdout


def test_explain_of_an_unknown_name_suggests_the_nearest(hidl: Any) -> None:
    completed = hidl("tuning", "explain", "MV2_USE_CDUA")

    assert (completed.returncode, completed.stdout) == (2, "")
    assert "did you mean MV2_USE_CUDA?" in completed.stderr


def test_names_are_completed(hidl: Any) -> None:
    variables = {"_HIDL_COMPLETE": "complete_bash", "COMP_WORDS": "hidl tuning explain MV2_USE_CU", "COMP_CWORD": "3"}
    script = "import sys\nsys.argv[0] = 'hidl'\nfrom hidl_cli.commands import app\napp.command_line()(prog_name='hidl')"
    done = subprocess.run(
        [sys.executable, "-c", script], env=hidl.environment | variables, capture_output=True, text=True, check=False
    )

    assert done.stdout.split() == ["MV2_USE_CUDA"]


def test_site_check_reports_invalid_tuning(hidl: Any) -> None:
    file = hidl.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(SITE.replace("MV2_GPUDIRECT_GDRCOPY_LIB: /opt/gdrcopy/lib/libgdrapi.so", "MV2_USE_CUDA: maybe"))

    completed = hidl("site", "check", "mine")

    assert completed.returncode == 3
    assert "= expected: 0 or 1" in completed.stderr


@pytest.mark.parametrize("option", ["--tune", "--mv2"])
def test_an_error_names_its_option(hidl: Hidl, option: str) -> None:
    run = ("run", "mpi-sanity", "--dry-run", "--site", "frontera-rtx", "--mpi", "mvapich2-gdr")
    wordless = hidl(*run, option, "MV2_USE_CUDA")
    unknown = hidl(*run, option, "MV2_USE_CDUA=1")

    assert (wordless.returncode, unknown.returncode) == (3, 3)
    assert "--tune 'MV2_USE_CUDA' has no '='" in wordless.stderr
    assert "unknown variable `MV2_USE_CDUA` (--tune)" in unknown.stderr


def test_option_and_alias_are_one_option(hidl: Hidl) -> None:
    invalid = hidl("run", "kmeans", "--dry-run", "--mv2", "A", "--tune", "B")
    assert "2 invalid --tune value(s)" in invalid.stderr

    run = ("run", "mpi-sanity", "--dry-run", "--site", "frontera-rtx", "--mpi", "mvapich2-gdr")
    script = hidl(*run, "--tune", "MV2_USE_CUDA=0", "--mv2", "MV2_USE_CUDA=1").stdout
    assert "export MV2_USE_CUDA=1 # --tune" in script.splitlines()
