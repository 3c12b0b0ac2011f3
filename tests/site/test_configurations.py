"""Sites drafted from the configuration files of Spack, Stackinator, ReFrame and Benchpark."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import pty
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hidl_cli import process
from hidl_cli.errors import HidlError, InvalidInput, MissingPrecondition, ProcessFailed, UsageError
from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import at_path
from hidl_cli.site.checks import RULES
from hidl_cli.site.configurations import reframe
from hidl_cli.site.configurations.draft import configuration_files, draft_from_files
from hidl_cli.site.configurations.spack import ParsedSpec, parse_spec
from hidl_cli.site.draft import SiteDraft
from hidl_cli.site.schema import Site
from tests.conftest import Hidl

PACKAGES = """\
packages:
  all:
    providers: {mpi: [cray-mpich, openmpi]}
    require: target=zen3
    variants: amdgpu_target=gfx90a
    permissions: {read: world}
  cray-mpich:
    buildable: false
    externals:
    - spec: cray-mpich@8.1.28 %gcc@12.3
      modules: [cray-mpich/8.1.28]
      prefix: /opt/cray/pe/mpich/8.1.28
  openmpi:
    externals:
    - {spec: openmpi@4.1.6, prefix: /sw/openmpi/4.1.6}
    - {spec: openmpi@5.0.5 +cuda fabrics=ofi, prefix: /sw/openmpi/5.0.5}
  gcc:
    externals:
    - spec: gcc@12.3.0 languages:='c,c++,fortran'
      prefix: /usr
      extra_attributes:
        compilers: {c: /opt/gcc/bin/gcc-12, cxx: /opt/gcc/bin/g++-12, fortran: /opt/gcc/bin/gfortran-12}
  cuda:
    require: ['@12:']
    externals:
    - {spec: cuda@11.8.0, prefix: /sw/cuda/11.8}
    - {spec: cuda@12.6.2, prefix: /sw/cuda/12.6}
"""
COMPILERS = """\
compilers:
- compiler:
    spec: gcc@12.2.0
    paths: {cc: /opt/gcc/12.2/bin/gcc, cxx: /opt/gcc/12.2/bin/g++, f77: null, fc: null}
    flags: {cflags: -O2}
    operating_system: rhel8
    target: x86_64
    modules: [gcc/12.2.0]
- compiler:
    spec: clang@16.0.0
    paths: {cc: /opt/rocm/bin/amdclang, cxx: /opt/rocm/bin/amdclang++, f77: None, fc: /opt/rocm/bin/amdflang}
"""
SETTINGS = """\
import os
print('settings are printed to nobody')
site_configuration = {
    'systems': [{
        'name': 'grove', 'descr': 'Grove', 'hostnames': [r'login\\d+'], 'modules_system': 'lmod',
        'env_vars': [['FI_PROVIDER', 'cxi'], ['API_TOKEN', 'ghp_0123456789abcdef0123456789abcdef0123']],
        'partitions': [
            {'name': 'login', 'scheduler': 'local', 'launcher': 'local', 'environs': ['builtin']},
            {'name': 'GPU', 'descr': 'four A100', 'scheduler': 'slurm', 'launcher': 'srun',
             'access': ['-p gpu', '-A hpcroot', '--constraint=a100', '--switches=1'], 'environs': ['gnu', 'cuda'],
             'max_jobs': 100, 'container_platforms': [{'type': 'Singularity', 'modules': ['apptainer']}],
             'processor': {'arch': 'zen3', 'num_cpus': 128, 'num_cpus_per_core': 2, 'num_sockets': 2},
             'devices': [{'type': 'gpu', 'arch': 'sm_80', 'num_devices': 4}],
             'resources': [{'name': '_rfm_gpu', 'options': [
                 '--gpus-per-node=a100:{num_gpus_per_node}', '--time=1:00']}]},
            {'name': 'cpu', 'scheduler': 'squeue', 'launcher': 'mpirun', 'environs': ['gnu']},
        ]}],
    'environments': [
        {'name': 'gnu', 'modules': ['gcc/12.3', 'openmpi/5.0.5'], 'cc': 'mpicc'},
        {'name': 'cuda', 'modules': ['nvhpc/23.11', 'openmpi/4.1.6']},
        {'name': 'intel', 'modules': ['intel/2024', 'impi/2021']},
    ],
    'general': [{'check_search_path': [os.path.join('a', 'b')]}],
}
"""
VARIABLES = (
    "variables: {scheduler: flux, sys_cores_per_node: '64', sys_gpus_per_node: 4, rocm_arch: gfx90a, n_nodes: '1'}\n"
)
DEFINITION = """\
system_definition:
  name: Tioga
  site: LLNL
  processor: {vendor: AMD, name: EPYC-Zen3, ISA: x86_64, uArch: zen3}
  accelerator: {vendor: AMD, name: MI250X, ISA: GCN, uArch: gfx90a}
  interconnect: {vendor: HPECray, name: Slingshot11}
"""
SYSTEM = """\
from benchpark.system import System
raise SystemExit("executed")
class Lab(System):
    id_to_resources = {
        "dane": {"sys_cores_per_node": 112, "sys_mem_per_node_GB": 256, "hardware_key": str(place) + "/dane"},
        "ruby": {"sys_cores_per_node": 56},
    }
    def __init__(self, spec):
        super().__init__(spec)
        self.scheduler = "slurm"
    def compute_packages_section(self):
        return {}
"""


def drafted(directory: Path, name: str | None = None, /, **files: str) -> tuple[SiteDraft, dict[str, Any]]:
    """The draft from these files (NAME__yaml), which is valid, and its contents."""
    places = []
    for key, text in files.items():
        places.append(directory / key.replace("__", "."))
        places[-1].write_text(text)
    default, draft = draft_from_files(configuration_files(places), name)
    made = draft(name or default)
    file = directory / f"{made.name}.yaml"
    file.write_text(made.text)
    examined = examine(RULES, at_path("site", file))
    assert examined.model is not None, examined.problems
    return made, yaml.safe_load(made.text)


def left_out(made: SiteDraft, *words: str) -> bool:
    """Whether some line about what was left out has all these words."""
    lines = [line for line in made.remarks if line.startswith("left out: ")]
    return any(all(word in line for word in words) for line in lines)


@pytest.mark.parametrize("place", ["$CRAY_MPICH_DIR/gnu", "${HOME}/sw", "~/sw/mpi", "$spack/../mpi"])
def test_paths_that_spack_expands_are_left_out(place: str, tmp_path: Path) -> None:
    external = {"spec": "openmpi@5.0.5", "prefix": place}
    compilers = {"c": f"{place}/bin/gcc", "cxx": f"{place}/bin/g++"}
    packages = {
        "openmpi": {"externals": [external]},
        "cuda": {"externals": [{"spec": "cuda@12.6", "prefix": place}]},
        "libfabric": {"externals": [{"spec": "libfabric@2", "prefix": place, "modules": ["libfabric"]}]},
        "gcc": {"externals": [{"spec": "gcc@12.3", "prefix": place, "extra_attributes": {"compilers": compilers}}]},
    }
    made, site = drafted(tmp_path, "x", packages__yaml=yaml.safe_dump({"packages": packages}))

    assert "$" not in json.dumps(site)
    assert "~" not in json.dumps(site)
    assert site["mpi"]["openmpi"] == {"family": "openmpi", "version": "5.0.5"}
    assert site["externals"] == {"libfabric": {"version": "2", "modules": ["libfabric"]}}
    for words in (("openmpi@5.0.5", place), ("cuda@12.6", place), (f"{place}/bin/gcc",), (f"{place}/bin/g++",)):
        assert left_out(made, *words, "Spack expands it"), made.remarks
    assert left_out(made, "cuda@12.6", "neither a prefix nor modules")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("openmpi@5.0.5 fabrics=ofi", ParsedSpec("openmpi", "5.0.5", "fabrics=ofi", "")),
        ("cray-mpich@8.1.26%cce@16.0.0 ~gtl", ParsedSpec("cray-mpich", "8.1.26", "~gtl", "%cce@16.0.0")),
        ("curl@7.61.1+gssapi+ldap~x", ParsedSpec("curl", "7.61.1", "+gssapi +ldap ~x", "")),
        ("gcc@=12 languages:='c,c++' arch=linux", ParsedSpec("gcc", "12", "languages:='c,c++'", "arch=linux")),
        ("cmake@3.20: ^zlib", ParsedSpec("cmake", None, "", "@3.20: ^zlib")),
        ("xpmem@git.3bcab55=master", ParsedSpec("xpmem", None, "", "@git.3bcab55=master")),
        ("slurm", ParsedSpec("slurm", None, "", "")),
        ("  ", None),
    ],
)
def test_specs_are_divided(text: str, spec: ParsedSpec | None) -> None:
    assert parse_spec(text) == spec


def test_spack_packages_become_libraries_compilers_and_externals(tmp_path: Path) -> None:
    made, site = drafted(tmp_path, "grove", packages__yaml=PACKAGES)

    assert {name: library["version"] for name, library in site["mpi"].items()} == {
        "cray-mpich": "8.1.28",
        "openmpi": "5.0.5",
        "openmpi-4.1.6": "4.1.6",
    }
    assert site["mpi"]["openmpi"]["variants"] == "+cuda fabrics=ofi"
    assert site["mpi"]["cray-mpich"]["modules"] == ["cray-mpich/8.1.28"]
    assert site["default_mpi"] == "cray-mpich"
    assert site["compilers"]["gcc"] == {
        "package": "gcc",
        "version": "12.3.0",
        "prefix": "/opt/gcc",
        "c": "gcc-12",
        "cxx": "g++-12",
        "fortran": "gfortran-12",
    }
    assert site["externals"] == {"cuda": {"version": "12.6.2", "prefix": "/sw/cuda/12.6"}}
    assert site["spack"] == {"target": "zen3", "require": {"cuda": ["@12:"]}}
    assert (site["scheduler"], site["partitions"]) == (None, {})
    assert left_out(made, "cuda@11.8.0", "one external per package")
    assert left_out(made, "%gcc@12.3")
    assert left_out(made, "packages.all.permissions")
    assert "scheduler" in made.open


def test_compilers_of_older_spack_are_carried_over(tmp_path: Path) -> None:
    made, site = drafted(tmp_path, "grove", compilers__yaml=COMPILERS)

    assert site["compilers"]["gcc"] == {
        "package": "gcc",
        "version": "12.2.0",
        "prefix": "/opt/gcc/12.2",
        "modules": ["gcc/12.2.0"],
    }
    assert site["compilers"]["llvm"]["c"] == "amdclang"
    assert left_out(made, "flags", "-O2")


def test_reframe_settings_become_partitions_and_nodes(tmp_path: Path) -> None:
    made, site = drafted(tmp_path, settings__py=SETTINGS)

    assert (site["name"], site["title"], site["scheduler"], site["launchers"]) == (
        "grove",
        "Grove",
        "slurm",
        ["srun", "mpirun"],
    )
    assert site["match"] == {"hostname": r"(login\d+).*"}
    assert site["partitions"]["gpu"] | {"max_nodes": None} == {
        "node_type": "gpu",
        "constraint": "a100",
        "max_nodes": None,
        "max_wall": None,
    }
    node = site["node_types"]["gpu"]
    assert [node[key] for key in ("arch", "sockets", "cores", "threads_per_core", "gpus", "gpu_model", "gpu_arch")] == [
        "x86_64", 2, 64, 2, 4, "a100", "sm_80",
    ]  # fmt: skip
    assert site["node_types"]["cpu"]["cores"] is None
    assert site["policies"] == {"environment": {"FI_PROVIDER": "cxi"}, "gpus": "gpus-per-node"}
    assert site["containers"] == {"runtime": "apptainer"}
    assert site["mpi"]["openmpi"]["modules"] == ["gcc/12.3", "openmpi/5.0.5"]
    assert site["mpi"]["openmpi-cuda"]["version"] == "4.1.6"
    for words in (
        ("partitions[0]", "scheduler is local"),
        ("-A hpcroot", "--account"),
        ("--switches=1", "policies.directives"),
        ("max_jobs: 100",),
        ("API_TOKEN", "secret"),
        ("--time=1:00",),
        ("intel", "no partition"),
        ("partition cpu", "names no queue"),
        ("general",),
    ):
        assert left_out(made, *words), words
    assert "ghp_" not in made.text


def settings_of(*partitions: dict[str, Any], **values: Any) -> str:
    """Settings with these partitions of Slurm, in one environment ``gnu`` unless ``environments`` is given."""
    default = {"scheduler": "slurm", "launcher": "srun", "environs": ["gnu"]}
    system = {"name": "grove", "hostnames": [], "partitions": [{**default, **one} for one in partitions]}
    system |= values.pop("system", {})
    environments = values.pop("environments", [{"name": "gnu", "modules": ["openmpi/5.0.5"]}])
    return json.dumps({"systems": [system], "environments": environments, **values})


SECRETS = {
    "partition": "partition-0123",
    "environment": "environment-0123",
    "command": "command-0123",
    "header": "header-0123",
    "address": "address-0123",
    "nested": "nested-0123",
    "compiler": "compiler-0123",
    "word": "swordfish",
    "key": "ghp_0123456789abcdef0123456789abcdef0123",
}


def test_no_secret_of_any_file_is_shown(tmp_path: Path) -> None:
    gpu = {
        "name": "gpu",
        "access": ["-p gpu"],
        "env_vars": [["WANDB_API_KEY", SECRETS["partition"]]],
        "prepare_cmds": [f"vault login {SECRETS['command']}"],
        "extras": {"registry": {"password": SECRETS["nested"]}, "pair": ["DB_PASSWORD", SECRETS["nested"]]},
    }
    environments = [
        {
            "name": "gnu",
            "modules": ["openmpi/5.0.5"],
            "variables": {"GITHUB_TOKEN": SECRETS["environment"]},
            "password": SECRETS["word"],
        },
        {"name": "unused", "env_vars": {"X": SECRETS["environment"]}},
    ]
    handler = {
        "type": "httpjson",
        "url": f"https://a:{SECRETS['address']}@b/",
        "extra_headers": {"X": SECRETS["header"]},
    }
    text = settings_of(
        gpu, environments=environments, logging=[{"handlers": [handler]}], **{SECRETS["key"]: {"url": "x"}}
    )
    compilers = COMPILERS.replace(
        "    flags:", f"    environment: {{set: {{LICENSE: {SECRETS['compiler']}}}}}\n    flags:"
    )
    made, _ = drafted(tmp_path, settings__json=text, compilers__yaml=compilers)

    shown = made.text + "".join(made.remarks)
    assert [name for name, secret in SECRETS.items() if secret in shown] == []
    for name in ("WANDB_API_KEY", "GITHUB_TOKEN", "prepare_cmds", "environment"):
        assert left_out(made, name), name


@pytest.mark.parametrize("value", ["$HOME/scratch", "${A}", "`hostname`", "~/x", "a b", '"a"', "a;b", "$(id)", "x\\y"])
def test_variables_that_a_shell_expands_are_left_out(value: str, tmp_path: Path) -> None:
    pairs = [["SCRATCH_X", value], ["FI_PROVIDER", "cxi"], ["PATH", "/opt/tools/bin"], ["EMPTY", ""]]
    made, site = drafted(tmp_path, settings__json=settings_of({"name": "cpu"}, system={"env_vars": pairs}))

    assert site["policies"]["environment"] == {"FI_PROVIDER": "cxi"}
    assert left_out(made, "SCRATCH_X", "shell")
    assert left_out(made, "PATH: /opt/tools/bin", "value of the job")
    assert left_out(made, "EMPTY", "empty")


def test_policies_are_those_on_which_all_partitions_agree(tmp_path: Path) -> None:
    def policies(*partitions: dict[str, Any]) -> tuple[SiteDraft, dict[str, Any]]:
        made, site = drafted(tmp_path, settings__json=settings_of(*partitions))
        return made, site.get("policies", {})

    memory = [{"name": "mem", "options": ["--mem={size}"]}]
    gres = [{"name": "gpu", "options": ["--gres=gpu:{n}"]}]
    per_node = [{"name": "gpu", "options": ["--gpus-per-node={n}"]}]
    devices = [{"type": "gpu", "num_devices": 4}]
    one = {"name": "gpu", "access": ["-p gpu", "--exclusive"], "resources": [*memory, *gres], "devices": devices}
    two = {"name": "cpu", "access": ["-p cpu"]}
    made, found = policies(one, two)
    assert found == {"gpus": "gres"}
    for words in (("--exclusive", "policies.exclusive"), ("--mem={size}", "policies.memory")):
        assert left_out(made, *words, "partitions differ"), words
    assert policies(one)[1] == {"exclusive": True, "memory": "mem", "gpus": "gres"}
    both = policies(one, {**two, "access": ["-p cpu", "--exclusive"], "resources": memory})[1]
    assert both == {"exclusive": True, "memory": "mem", "gpus": "gres"}
    assert "gpus" not in policies(one, {"name": "b", "access": ["-p b"], "devices": devices})[1]
    assert "gpus" not in policies(one, {"name": "b", "access": ["-p b"], "resources": per_node})[1]
    assert left_out(policies({**one, "resources": [*gres, *per_node]})[0], "gpus-per-node", "differs")


@pytest.mark.parametrize("access", ["--exclusive=user", "--exclusive=mcs", "--gres=gpu:0", "--gpus-per-node=a100:0"])
def test_options_that_mean_something_else_do_not_become_policies(access: str, tmp_path: Path) -> None:
    made, site = drafted(tmp_path, settings__json=settings_of({"name": "a", "access": ["-p a", access]}))
    assert "policies" not in site
    assert left_out(made, access, "policies.directives")


def test_partitions_of_another_scheduler_are_left_out(tmp_path: Path) -> None:
    other = {"name": "b", "scheduler": "pbs", "launcher": "mpiexec", "access": ["-q bq"]}
    made, site = drafted(tmp_path, settings__json=settings_of({"name": "a", "access": ["-p a"]}, other))

    assert ([*site["partitions"]], site["scheduler"], site["launchers"]) == (["a"], "slurm", ["srun"])
    assert left_out(made, "partitions[1]", "its scheduler is pbs")


def test_options_are_accounts_of_their_scheduler_only(tmp_path: Path) -> None:
    made, _ = drafted(tmp_path, settings__json=settings_of({"name": "a", "access": ["-p a", "-G 4", "-A x"]}))
    assert left_out(made, "-G 4", "policies.directives")
    assert left_out(made, "-A x", "account")


def test_the_environment_of_a_partition_is_the_most_specific_one(tmp_path: Path) -> None:
    environments = [
        {"name": "gnu", "modules": ["mpich/4.2"]},
        {"name": "gnu", "modules": ["openmpi/5.0.5"], "target_systems": ["grove:b"]},
        {"name": "gnu", "modules": ["openmpi/4.1.6"], "target_systems": ["elsewhere"]},
    ]

    def libraries(*names: str) -> set[str]:
        partitions = [{"name": name, "access": [f"-p {name}"]} for name in names]
        made, site = drafted(tmp_path, settings__json=settings_of(*partitions, environments=environments))
        assert left_out(made, "openmpi/4.1.6", "no partition of this draft uses it")
        return {*site["mpi"]}

    assert libraries("a", "b") == {"mpich", "openmpi"}
    assert libraries("b") == {"openmpi"}
    assert libraries("a") == {"mpich"}


def test_settings_of_packages_without_a_key_are_left_out(tmp_path: Path) -> None:
    text = PACKAGES.replace("variants: amdgpu_target=gfx90a", "variants: [amdgpu_target=gfx90a, +shared]")
    text = text.replace("  gcc:\n", "  gcc:\n    buildable: false\n").replace("{c: /opt", "{hip: /opt/hipcc, c: /opt")
    made, site = drafted(tmp_path, "grove", packages__yaml=text)

    assert site["compilers"]["gcc"]["c"] == "gcc-12"
    for words in (("cray-mpich.buildable", "false"), ("gcc.buildable", "false"), ("+shared",), ("hip /opt/hipcc",)):
        assert left_out(made, *words), words


def test_files_of_a_directory_that_nothing_reads_are_skipped(tmp_path: Path) -> None:
    directory = tmp_path / "spack"
    directory.mkdir()
    (directory / "packages.yaml").write_text(PACKAGES)
    (directory / "config.yaml").write_text("config:\n  build_jobs: 4\n")
    files = configuration_files([directory])
    made = draft_from_files(files, "grove", named=[])[1]("grove")

    assert "skipped config.yaml: it is of no supported kind" in made.remarks
    assert "openmpi" in yaml.safe_load(made.text)["mpi"]
    for named in (files, None):
        with pytest.raises(InvalidInput, match=r"config\.yaml is not a supported configuration file"):
            draft_from_files(files, "grove", named=named)
    (directory / "packages.yaml").unlink()
    with pytest.raises(InvalidInput, match="no file is of a supported kind"):
        draft_from_files(configuration_files([directory]), "grove", named=[])


def test_several_files_complete_each_other_and_contradictions_are_named(tmp_path: Path) -> None:
    made, site = drafted(tmp_path, packages__yaml=PACKAGES, settings__py=SETTINGS.replace("'cpu', 's", "'gpu2', 's"))

    assert site["mpi"]["openmpi"] == {
        "family": "openmpi",
        "version": "5.0.5",
        "variants": "+cuda fabrics=ofi",
        "prefix": "/sw/openmpi/5.0.5",
        "modules": ["gcc/12.3", "openmpi/5.0.5"],
    }
    one = SETTINGS.replace("{'name': 'cpu', 'scheduler': 'squeue', 'launcher': 'mpirun', 'environs': ['gnu']},", "")
    made, site = drafted(tmp_path, packages__yaml=PACKAGES, settings__py=one)
    assert site["node_types"]["gpu"]["gpu_arch"] == "sm_80"
    assert left_out(made, "gfx90a", "sm_80 in settings.py")


def test_one_of_several_systems_is_chosen_by_name(tmp_path: Path) -> None:
    systems = [{"name": name, "hostnames": [".*"], "partitions": []} for name in ("alvis", "vera", "generic")]
    text = json.dumps({"systems": systems, "environments": []})

    with pytest.raises(UsageError, match="several systems: alvis, vera") as error:
        drafted(tmp_path, settings__json=text)
    made, site = drafted(tmp_path, "vera", settings__json=text)

    assert "hidl site new alvis" in str(error.value.hint)
    assert (site["name"], "match" in site) == ("vera", False)
    assert left_out(made, "systems[0]", "this draft is for system vera")


def test_without_a_queue_in_any_access_no_partition_is_requested(tmp_path: Path) -> None:
    part = {"name": "2xv100", "scheduler": "slurm", "launcher": "srun", "access": ["-C 2xV100"], "environs": []}
    text = json.dumps({"systems": [{"name": "alvis", "partitions": [part]}]})

    assert drafted(tmp_path, settings__json=text)[1]["policies"] == {"partition": "never"}


def test_benchpark_files_describe_the_only_node_type(tmp_path: Path) -> None:
    made, site = drafted(tmp_path, variables__yaml=VARIABLES, system_definition__yaml=DEFINITION)

    assert (site["name"], site["title"], site["scheduler"]) == ("tioga", "Tioga (LLNL)", "flux")
    assert site["interconnect"] == "HPECray Slingshot11"
    node = site["node_types"]["node"]
    assert [node[key] for key in ("cpu", "cores", "gpus", "gpu_model", "gpu_arch")] == [
        "AMD EPYC-Zen3", 64, 4, "AMD MI250X", "gfx90a",
    ]  # fmt: skip
    assert left_out(made, "n_nodes", "benchmarks")


def test_a_benchpark_program_is_read_but_not_executed(tmp_path: Path) -> None:
    made, site = drafted(tmp_path, "dane", system__py=SYSTEM)

    assert (site["scheduler"], site["node_types"]["node"]["cores"]) == ("slurm", 112)
    assert site["node_types"]["node"]["memory_gib"] == 256
    assert left_out(made, "hardware_key", "str(place)")
    assert left_out(made, "compute_packages_section", "benchpark system init")
    with pytest.raises(UsageError, match="dane, ruby"):
        drafted(tmp_path, system__py=SYSTEM)


def test_a_stackinator_recipe_gives_its_mpi_libraries(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "config.yaml").write_text("name: prgenv\nstore: /user-environment\nspack: {repo: x, commit: y}\n")
    (recipe / "compilers.yaml").write_text("gcc: {version: '13'}\n")
    (recipe / "environments.yaml").write_text(
        "gnu: {compiler: [gcc], network: {mpi: cray-mpich@8.1.30 +cuda}, specs: [hdf5], variants: [+mpi]}\n"
    )
    _, draft = draft_from_files(configuration_files([recipe]), "daint")
    made = draft("daint")
    site = yaml.safe_load(made.text)

    assert site["mpi"] == {"cray-mpich-8.1.30": {"family": "cray-mpich", "version": "8.1.30", "variants": "+cuda"}}
    assert left_out(made, "gcc", "built by the recipe")
    assert left_out(made, "gnu.specs", "hdf5")
    assert left_out(made, "config.yaml", "store")


@pytest.mark.parametrize("package", ["mpich", "openmpi", "gcc", "cuda"])
@pytest.mark.parametrize("spec", ["mvapich@4.0", "llvm@18", "foo@1", "packages"])
def test_an_external_of_another_package_is_left_out(package: str, spec: str, tmp_path: Path) -> None:
    externals = [{"spec": spec, "prefix": "/other"}, {"spec": f"builtin.{package}@5", "prefix": "/own"}]
    text = json.dumps({"packages": {package: {"externals": externals}}})
    made, site = drafted(tmp_path, "grove", packages__json=text)

    section = {"cuda": "externals", "gcc": "compilers"}.get(package, "mpi")
    assert (site[section][package]["version"], site[section][package]["prefix"]) == ("5", "/own")
    assert len(site[section]) == 1
    assert left_out(made, "/other", f"an external of {package} cannot be another package, {spec.partition('@')[0]}")


def test_several_externals_without_a_version_are_distinct(tmp_path: Path) -> None:
    externals = [{"spec": "openmpi", "prefix": prefix} for prefix in ("/a", "/b")]
    _, site = drafted(tmp_path, "grove", packages__json=json.dumps({"packages": {"openmpi": {"externals": externals}}}))
    assert {key: entry["prefix"] for key, entry in site["mpi"].items()} == {"openmpi": "/a", "openmpi-2": "/b"}


def test_a_preferred_library_that_is_no_spec_is_left_out(tmp_path: Path) -> None:
    text = json.dumps({"packages": {"all": {"providers": {"mpi": ["%gcc"]}}}})
    made, _ = drafted(tmp_path, "grove", packages__json=text)
    assert left_out(made, "providers", "%gcc")


def test_a_folder_of_outputs_is_no_configuration(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "lscpu.txt").write_text("x")
    file = tmp_path / "packages.yaml"
    file.write_text(PACKAGES)

    assert configuration_files([outputs]) == ()
    with pytest.raises(UsageError, match="no configuration file"):
        configuration_files([outputs, file])
    with pytest.raises(UsageError, match="not found"):
        configuration_files([tmp_path / "absent.yaml"])
    with pytest.raises(UsageError, match="name of the machine"):
        draft_from_files([file], None)


# Settings that misbehave.


@pytest.fixture
def isolated() -> None:
    """Skip the test if the kernel does not permit the isolation."""
    try:
        process.run([*reframe.ISOLATED, "true"])
    except ProcessFailed:
        pytest.skip("unshare is not permitted here")


@pytest.mark.usefixtures("isolated")
def test_settings_have_no_network_no_variables_and_leave_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVATE", "value")
    late = tmp_path / "late"
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        file = tmp_path / "settings.py"
        file.write_text(
            "import os, socket, subprocess\n"
            f"subprocess.Popen(['sh', '-c', 'sleep 2; touch {late}'], start_new_session=True)\n"
            "try:\n"
            f"    socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2); reached = 'yes'\n"
            "except OSError:\n"
            "    reached = 'no'\n"
            "site_configuration = {'systems': [], 'reached': reached, 'private': os.environ.get('PRIVATE')}\n"
        )
        found, remark = reframe.execute_settings(file)
    time.sleep(3)

    assert found == {"systems": [], "reached": "no", "private": None}
    assert remark is None
    assert not late.exists()


ATTEMPTS = """
import ctypes, os, socket, subprocess
done = {}
def attempt(name, act):
    try:
        done[name] = str(act() or 'done')
    except (OSError, PermissionError) as error:
        done[name] = 'rejected'
def connect():
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(SOCKET)
def mount(*words):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(*words):
        raise OSError(ctypes.get_errno(), 'mount')
def environ():
    for each in filter(str.isdigit, os.listdir('/proc')):
        try:
            if b'PRIVATE=value' in open(f'/proc/{each}/environ', 'rb').read():
                return 'readable'
        except OSError:
            pass
    raise PermissionError
attempt('write beside', lambda: open(os.path.join(os.path.dirname(__file__), 'written'), 'w').write('x'))
attempt('write elsewhere', lambda: open(os.path.join(ELSEWHERE, 'written'), 'w').write('x'))
attempt('read elsewhere', lambda: open(os.path.join(ELSEWHERE, 'own')).read())
attempt('read home', lambda: open(os.path.join(OF_USER, 'own')).read())
attempt('unix socket', connect)
attempt('remount', lambda: mount(None, b'/', None, 32 | 4096, None))
attempt('unmount', lambda: mount(b'tmpfs', b'/etc', b'tmpfs', 0, None))
attempt('environment', environ)
attempt('temporary', lambda: open('/tmp/own', 'w').close())
attempt('program', lambda: subprocess.run(['true'], check=True) and None)
attempt('module', lambda: __import__('beside').VALUE)
site_configuration = {'systems': [], 'done': done}
"""


INPUT = """
import fcntl, os, termios
def typed(path):
    try:
        terminal = os.open(path, os.O_RDWR)
        fcntl.ioctl(terminal, termios.TIOCSTI, b'x')
        return True
    except OSError:
        return False
typed = [typed(path) for path in ('/dev/tty', TERMINAL)]
try:
    kernel = os.open('/proc/sys/kernel/printk_ratelimit', os.O_WRONLY)
except OSError:
    kernel = None
site_configuration = {'systems': [], 'typed': typed, 'devices': os.listdir('/dev'), 'kernel': kernel}
"""


@pytest.mark.usefixtures("isolated")
def test_isolated_settings_have_no_terminal_no_disk_and_no_kernel_parameters(tmp_path: Path) -> None:
    """Characters that a process puts into its controlling terminal are commands of the user's shell."""
    ours, theirs = pty.openpty()
    file = tmp_path / "settings.py"
    file.write_text(f"TERMINAL = {os.ttyname(theirs)!r}\n{INPUT}")
    execute = "import json, pathlib, sys; from hidl_cli.site.configurations import reframe; "
    execute += "print(json.dumps(reframe.execute_settings(pathlib.Path(sys.argv[1]))[0]))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", execute, str(file)],
            stdin=theirs,
            capture_output=True,
            text=True,
            check=True,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    finally:
        os.close(ours)
        os.close(theirs)
    found = json.loads(done.stdout)
    assert found["typed"] == [False, False]
    assert found["kernel"] is None
    assert {*found["devices"]} <= {"null", "zero", "full", "random", "urandom", "shm"}


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("place", ["directory", "home"])
def test_isolated_settings_change_and_reach_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    directory = home if place == "home" else tmp_path / "site"
    for each in (home, elsewhere, tmp_path / "site"):
        each.mkdir()
    (elsewhere / "own").write_text("private")
    (home / "own").write_text("private")
    (directory / "beside.py").write_text("VALUE = 'imported'")
    monkeypatch.setenv("PRIVATE", "value")
    monkeypatch.setenv("HOME", str(home))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "s"))
        server.listen()
        names = {"SOCKET": str(directory / "s"), "ELSEWHERE": str(elsewhere), "OF_USER": str(home)}
        file = directory / "settings.py"
        file.write_text("\n".join(f"{name} = {value!r}" for name, value in names.items()) + ATTEMPTS)
        if place == "home":
            with pytest.raises(InvalidInput, match="beside"):  # only the file itself is there
                reframe.execute_settings(file)
            file.write_text(file.read_text().replace("attempt('module'", "0 and attempt('module'"))
        found, remark = reframe.execute_settings(file)

    rejected = ("write beside", "write elsewhere", "read elsewhere", "read home", "unix socket", "remount", "unmount")
    expected = dict.fromkeys((*rejected, "environment"), "rejected") | {"temporary": "done", "program": "done"}
    if place == "home":
        expected["write beside"] = "1"  # into a temporary directory in place of the home
    else:
        expected["module"] = "imported"
    assert found["done"] == expected
    assert remark is None
    assert {each.name for each in (*directory.iterdir(), *elsewhere.iterdir())} <= {
        "settings.py", "beside.py", "own", "s", "__pycache__",
    }  # fmt: skip


def test_settings_that_cannot_be_isolated_are_refused_unless_requested(
    hidl: Hidl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, proof = tmp_path / "settings.py", tmp_path / "executed"
    file.write_text(f"open({str(proof)!r}, 'w')\nsite_configuration = {{'systems': []}}\n")
    for command in (("false",), ("absent-program",), ("env", "HIDL=1")):  # the last one isolates nothing
        monkeypatch.setattr(reframe, "ISOLATED", command)
        with pytest.raises(MissingPrecondition, match="cannot isolate it on this machine"):
            reframe.execute_settings(file)
        assert not proof.exists()
        found, remark = reframe.execute_settings(file, required=False)
        assert (found, "access to your files, variables and network" in str(remark)) == ({"systems": []}, True)
        proof.unlink()

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "unshare").write_text("#!/bin/sh\necho not permitted >&2; exit 1\n")
    (tmp_path / "bin" / "unshare").chmod(0o755)
    hidl.environment["PATH"] = f"{tmp_path}/bin:{hidl.environment['PATH']}"
    file.write_text(SETTINGS)
    refused = hidl("site", "new", "--from", str(file), "--output", "-")
    assert (refused.returncode, "--no-isolation" in refused.stderr, "not permitted" in refused.stderr) == (
        4,
        True,
        True,
    )
    requested = hidl("site", "new", "--from", str(file), "--output", "-", "--no-isolation")
    assert requested.returncode == 0, requested.stderr
    assert "executed with access to your files" in requested.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("while True: pass", "stopped by hidl"),
        ("x = bytearray(10 ** 11)", "MemoryError"),
        ("raise ValueError('no such system')", "no such system"),
        ("import os; os._exit(3)", "exit status 3"),
        ("site_configuration = 3", "no site_configuration"),
        ("import absent_module", "absent_module"),
        (
            "site_configuration = {'a': {}}\nfor _ in range(2000): site_configuration = {'a': site_configuration}",
            "Recursion",
        ),
        ("a = {}; a['a'] = a; site_configuration = a", "Circular"),
        ("def :", "invalid syntax"),
        ("site_configuration = {(1, 2): 3}", "keys must be"),
    ],
)
def test_settings_that_cannot_be_executed_are_errors(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reframe, "_SECONDS", 1.5)
    file = tmp_path / "settings.py"
    file.write_text(text)

    with pytest.raises(InvalidInput, match=reason):
        reframe.execute_settings(file)


def test_values_that_are_not_data_are_named_by_their_type(tmp_path: Path) -> None:
    file = tmp_path / "settings.py"
    file.write_text("import pathlib\nsite_configuration = {'a': len, 'b': pathlib.Path('/x'), 'c': (1, 2)}\n")

    assert reframe.execute_settings(file)[0] == {"a": "<builtin_function_or_method>", "b": "/x", "c": [1, 2]}


HOSTILE = [
    "a\nname: other",
    "'; rm -rf /",
    "x" * 5000,
    "{{}}",
    "\x1b[31m",
    "-1",
    "null",
    "true",
    "é",
    "a: b # c",
    "~",
    "%",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_never_leave_their_place(value: str, tmp_path: Path) -> None:
    text = json.dumps({
        "packages": {
            "all": {"target": [value], "providers": {"mpi": [value]}},
            "openmpi": {"externals": [{"spec": "openmpi@5.0.5", "prefix": value, "modules": [value]}]},
            "cuda": {"require": value, "externals": [{"spec": f"cuda@{value}", "prefix": f"/x/{value}"}]},
            value: {"externals": [{"spec": "x@1", "prefix": "/usr"}]},
        }
    })  # fmt: skip
    file = tmp_path / "packages.json"
    file.write_text(text)
    _, draft = draft_from_files([file], "grove")
    site = yaml.safe_load(draft("grove").text)
    Site.model_validate(site)  # which rejects unknown keys at all levels

    assert site["name"] == "grove"
    assert {*site} <= {
        "name", "title", "sources", "interconnect", "scheduler", "launchers", "node_types", "partitions",
        "default_partition", "mpi", "externals", "spack", "default_mpi",
    }  # fmt: skip


WORDS = st.sampled_from(
    [
        "packages", "all", "externals", "spec", "prefix", "modules", "openmpi", "gcc", "openmpi@5.0.5 +x", "/usr",
        "systems", "name", "partitions", "scheduler", "slurm", "access", "-p gpu", "devices", "type", "gpu", "arch",
        "environments", "compilers", "compiler", "paths", "cc", "cxx", "/usr/bin/gcc", "variables", "mpi", "",
        "system_definition", "resources", "options", "--mem={size}", "extra_attributes", "require", "providers",
        "target", "processor", "num_cpus", "env_vars", "hostnames", "(", "software", "queue", "launcher", "srun",
        "foo@1", "llvm@18", "builtin.openmpi@5", "mpich", "cray-mpich@8", "network", "pkg_spec", "intel", "%gcc",
    ]
)  # fmt: skip
SCALARS = st.one_of(
    WORDS, st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(allow_nan=False), st.text(max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=5)),
    max_leaves=8,
)
REAL = [
    ("packages.json", yaml.safe_load(PACKAGES)),
    ("compilers.json", yaml.safe_load(COMPILERS)),
    ("spack.json", {"spack": yaml.safe_load(PACKAGES) | yaml.safe_load(COMPILERS) | {"specs": ["hdf5"]}}),
    ("network.json", yaml.safe_load(PACKAGES) | {"mpi": {"cray-mpich": {"specs": ["libfabric"]}}}),
    ("environments.yaml", {"gnu": {"compiler": ["gcc"], "network": {"mpi": "cray-mpich@8.1.30 +cuda"}}}),
    ("environments.yaml", {"gnu": {"compiler": ["gcc"], "mpi": {"spec": "openmpi@5", "gpu": "cuda"}}}),
    ("config.yaml", {"name": "prgenv", "store": "/user-environment", "spack": {"repo": "x", "commit": "y"}}),
    ("variables.json", yaml.safe_load(VARIABLES)),
    ("system.json", yaml.safe_load(DEFINITION)),
    ("software.json", {"software": {"packages": {"default-mpi": {"pkg_spec": "openmpi@5"}}}}),
    ("id.json", {"system": {"name": "Tioga"}}),
    (
        "settings.json",
        ast.literal_eval(SETTINGS.partition("site_configuration = ")[2].replace("os.path.join('a', 'b')", "'a'")),
    ),
]


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, Any]:
    """The name and the content of a real document, in which up to three values are replaced with others."""
    name, real = draw(st.sampled_from(REAL))
    document = json.loads(json.dumps(real))
    for _ in range(draw(st.integers(0, 3))):
        here = document
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(here[key], (dict, list)) and draw(st.integers(0, 4)):
                here = here[key]
                continue
            here[key] = draw(VALUES)
            break
    return name, document


@settings(max_examples=400, deadline=None)
@given(document=documents())
def test_any_document_is_drafted_or_refused(
    document: tuple[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("any") / document[0]
    file.write_text(json.dumps(document[1]))
    try:
        made = draft_from_files([file], "grove")[1]("grove")
    except HidlError:
        return
    drafts = file.parent / "grove.yaml"
    drafts.write_text(made.text)
    assert examine(RULES, at_path("site", drafts)).model is not None
