"""What a site's file leaves open is asked of the machine when stacks are installed, shown, and kept: by a real Lmod."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.site.module_tree import ModuleTree, at, frontera, frontera_rtx, needs_lmod

pytestmark = needs_lmod

DRY = ("install", "mpi", "--site", "frontera", "--dry-run")
INSTALL = ("install", "mpi", "--site", "frontera")


@pytest.fixture
def modules(tmp_path: Path, stack_prefix: Callable[[str], Path]) -> ModuleTree:
    """The modules that Frontera's file names."""
    return frontera(tmp_path / "tree", stack_prefix("mpi"))


@pytest.fixture
def there(hidl: Hidl, modules: ModuleTree) -> Hidl:
    """hidl on a machine that is Frontera by the user's own file."""
    return at(hidl, modules)


def own_file(hidl: Hidl, site: str = "frontera") -> Path:
    """The user's own file of the site."""
    return hidl.config / "sites" / f"{site}.yaml"


def test_a_dry_run_asks_shows_and_writes_nothing(there: Hidl, modules: ModuleTree) -> None:
    before = own_file(there).read_text()
    shown = there(*DRY)
    assert shown.returncode == 0, shown.stderr
    place = modules.prefix("mvapich2/2.3.7")
    assert f"mvapich2: 2.3.7, in {place}, read from this machine (mpiname -a)" in " ".join(shown.stderr.split())
    assert own_file(there).read_text() == before
    assert not (Path(there.environment["XDG_STATE_HOME"]) / "hidl").exists()


def test_the_answers_stand_in_the_json_document(there: Hidl, modules: ModuleTree) -> None:
    asked = there.json(*DRY)["asked"]
    assert {one["path"]: (one["value"], one["source"]) for one in asked} == {
        "mpi.mvapich2.version": ("2.3.7", "mpiname -a"),
        "mpi.mvapich2.prefix": (str(modules.prefix("mvapich2/2.3.7")), "which mpiname"),
        "mpi.impi.prefix": (str(modules.prefix("impi/21.9.0")), "which impi_info"),
    }
    assert {one["kept"] for one in asked} == {None}


def test_what_was_learned_is_kept_with_its_origin_beside_what_the_user_wrote(hidl: Hidl, modules: ModuleTree) -> None:
    mine = "# my own\nmpi:\n  mvapich2:\n    environment: {MV2_HOMOGENEOUS_CLUSTER: '1'}  # by hand\n"
    there = at(hidl, modules, text=mine)
    before = own_file(there).read_text()
    done = there(*INSTALL)
    assert done.returncode == 0, done.stderr
    after = own_file(there).read_text()
    assert after.startswith(before)
    pattern = r"    # asked of \S+ on \d{4}-\d\d-\d\d: mpiname -a\n    version: '2\.3\.7'\n"
    assert re.search(pattern, after), after
    shown = there.json("site", "show", "frontera")
    assert shown["site"]["mpi"]["mvapich2"]["version"] == "2.3.7"
    assert shown["files"][0] == str(own_file(there))


def test_a_second_installation_asks_nothing(there: Hidl, modules: ModuleTree) -> None:
    assert there(*INSTALL).returncode == 0
    for program in modules.place.rglob("apps/*/*/bin/*"):
        program.write_text("#!/bin/sh\nexit 1\n")
    again = there.json(*INSTALL)
    assert (again["asked"], again["installations"][0]["action"]) == ([], "nothing to do")


def test_a_run_takes_the_librarys_place_from_what_was_kept(there: Hidl, modules: ModuleTree) -> None:
    assert there(*INSTALL).returncode == 0
    job = there("run", "mpi-sanity", "--site", "frontera", "--nodes", "3", "--dry-run")
    assert f"mpi_prefix={modules.prefix('mvapich2/2.3.7')}\n" in job.stdout, job.stderr


def test_another_module_is_asked_again_and_what_hidl_wrote_is_replaced(
    there: Hidl, modules: ModuleTree, stack_prefix: Callable[[str], Path]
) -> None:
    assert there(*INSTALL).returncode == 0
    newer = modules.add_mvapich2("2.3.8", stack_prefix("mpi"))
    again = there.json(*INSTALL)
    assert {one["path"]: one["value"] for one in again["asked"]} == {
        "mpi.mvapich2.version": "2.3.8",
        "mpi.mvapich2.prefix": str(newer),
    }
    text = own_file(there).read_text()
    assert ("2.3.7" in text, text.count("version:"), text.count("# asked of")) == (False, 1, 3)


def test_a_new_file_holds_what_was_learned_and_nothing_else(
    hidl: Hidl, tmp_path: Path, stack_prefix: Callable[[str], Path]
) -> None:
    tree = frontera_rtx(tmp_path / "tree", stack_prefix("mpi"))
    here = Hidl(hidl.environment | tree.environment)
    done = here("stack", "lock", "mpi", "--site", "frontera-rtx")  # it has no `match`: it is where the user says
    assert done.returncode == 0, done.stderr
    lines = [line for line in own_file(here, "frontera-rtx").read_text().splitlines() if "#" not in line]
    assert lines == [
        "name: frontera-rtx",
        "extends: frontera-rtx",
        "mpi:",
        "  mvapich2-gdr:",
        "    version: '2.3.7'",
        f"    prefix: '{tree.prefix('mvapich2-gdr/2.3.7')}'",
    ]
    told = " ".join(done.stderr.split())
    assert "unknown: mpi.impi: `module load gcc/9.1.0" in told  # the tree has none of it, which ends nothing


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 2.3.6", "mpi.mvapich2 is 2.3.6 in the site file, but 2.3.7 on this machine (mpiname -a)"),
        ("family: openmpi", "mpi.mvapich2 is openmpi in the site file, but mvapich2 2.3.7 in"),
    ],
)
def test_a_machine_that_contradicts_the_file_is_an_error_that_names_both(
    hidl: Hidl, modules: ModuleTree, text: str, said: str
) -> None:
    there = at(hidl, modules, text=f"mpi:\n  mvapich2:\n    {text}\n    launchers: []\n")
    refused = there(*DRY)
    assert (refused.returncode, said in " ".join(refused.stderr.split())) == (3, True), refused.stderr


def test_a_shorter_version_is_not_a_contradiction(hidl: Hidl, modules: ModuleTree) -> None:
    there = at(hidl, modules, text="mpi:\n  mvapich2:\n    version: 2.3.7-1\n")
    assert "mpi.mvapich2.version" not in {one["path"] for one in there.json(*DRY)["asked"]}


def test_another_machine_than_the_site_is_not_asked(hidl: Hidl, modules: ModuleTree) -> None:
    elsewhere = Hidl(hidl.environment | modules.environment)
    shown = elsewhere(*DRY, "--json")
    assert json.loads(shown.stdout)["asked"] == []
    assert "this machine does not match it: host name" in " ".join(shown.stderr.split())


def test_modules_that_the_user_has_loaded_do_not_count(there: Hidl, modules: ModuleTree) -> None:
    other = modules.add("openmpi/5", mpicc="", ompi_info="Open MPI v5.0.3")
    loaded = {
        "PATH": f"{other}/bin:{there.environment['PATH']}",
        "LOADEDMODULES": "openmpi/5",
        "_LMFILES_": f"{modules.place}/modulefiles/openmpi/5.lua",
    }
    values = {one["path"]: one["value"] for one in Hidl(there.environment | loaded).json(*DRY)["asked"]}
    assert values["mpi.mvapich2.prefix"] == str(modules.prefix("mvapich2/2.3.7"))


def test_a_file_that_cannot_be_changed_safely_stays_and_what_to_add_is_said(hidl: Hidl, modules: ModuleTree) -> None:
    there = at(hidl, modules, text="mpi: {mvapich2: {environment: {MV2_HOMOGENEOUS_CLUSTER: '1'}}}\n")
    before = own_file(there).read_text()
    done = there(*INSTALL)
    assert done.returncode == 0, done.stderr
    assert own_file(there).read_text() == before
    assert "which hidl cannot edit safely:" in " ".join(done.stderr.split())
    assert "    version: '2.3.7'\n" in done.stderr


@pytest.mark.parametrize(
    "said",
    [
        "MVAPICH2 2.3.7$(touch${IFS}owned) x",
        "MVAPICH2 2.3.7\x1b[31m x",
        "MVAPICH2 2.3.7'; touch owned #",
        "",
    ],
)
def test_what_a_program_says_is_taken_for_a_version_alone(
    there: Hidl, modules: ModuleTree, tmp_path: Path, said: str
) -> None:
    modules.add("mvapich2/2.3.7", mpiname=said)
    shown = there(*DRY, "--json")
    assert shown.returncode == 0, shown.stderr
    assert "mpi.mvapich2.version" not in {one["path"] for one in json.loads(shown.stdout)["asked"]}
    assert "\x1b" not in shown.stderr
    assert not list(tmp_path.rglob("owned"))


def test_a_module_is_one_word_of_the_shell(hidl: Hidl, modules: ModuleTree, tmp_path: Path) -> None:
    there = at(hidl, modules, text="mpi:\n  mvapich2:\n    modules: ['mvapich2&touch|owned()']\n")
    shown = there(*DRY)
    assert (shown.returncode, "unknown: mpi.mvapich2: `module load" in shown.stderr) == (0, True), shown.stderr
    assert not list(tmp_path.rglob("owned")) + [Path("/owned")] * Path("/owned").exists()


def test_compilers_and_externals_are_asked_for_spack_alone(there: Hidl, modules: ModuleTree) -> None:
    from hidl_cli.site.discovery import entries
    from hidl_cli.site.load import load_site

    site = load_site("frontera")
    assert [entry.path for entry in entries(site, software=False)] == [("mpi", "mvapich2"), ("mpi", "impi")]
    assert [entry.path[0] for entry in entries(site, software=True)] == ["mpi", "mpi", "compilers", "externals"]


@pytest.mark.parametrize(
    ("arch", "said", "asked"),
    [
        ("ppc64le", "this machine does not match it: its nodes are ppc64le, and this machine is", False),
        (platform.machine(), "not saved: compilers.gcc, because site mine has no `match`", True),
    ],
)
def test_nothing_is_saved_for_a_site_that_may_be_another_machine(
    hidl: Hidl, arch: str, said: str, *, asked: bool
) -> None:
    before = (
        "name: mine\ntitle: mine\nscheduler: slurm\nlaunchers: [srun]\ncompilers: {gcc: {}}\ndefault_compiler: gcc\n"
        f"node_types: {{node: {{arch: {arch}}}}}\npartitions: {{main: {{node_type: node}}}}\ndefault_partition: main\n"
    )
    own_file(hidl, "mine").parent.mkdir(parents=True, exist_ok=True)
    own_file(hidl, "mine").write_text(before)
    lock = ("stack", "lock", "mpi", "--site", "mine", "--provider", "spack")
    done = hidl(*lock, HIDL_SPACK="/nowhere")
    assert said in " ".join(done.stderr.split()), done.stderr
    assert ("compiler gcc: " in done.stderr) == asked, done.stderr
    assert own_file(hidl, "mine").read_text() == before
