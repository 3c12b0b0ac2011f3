"""Environments for Spack: the same site and stack give the same ``spack.yaml``, held by golden files and schemas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hidl_cli.errors import InvalidInput, MissingPrecondition
from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import Site
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.providers.spack.call import prefixes
from hidl_cli.stack.providers.spack.environment import Environment, environment, included_files
from hidl_cli.stack.providers.spack.host import Places, index_of, places
from hidl_cli.stack.schema import Stack
from tests.stack.spack.conftest import GCC, MPICH, site, stack

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = ("frontera", "frontera-rtx", "lassen", "mri", "perlmutter", "piz-daint", "vista")
SITES = [entry.name for entry in list_all("site") if entry.origin == "shipped" and entry.name != "local"]
STACKS = [load_stack(entry.name) for entry in list_all("stack") if entry.origin == "shipped"]


def made(where: Places, machine: Site, wanted: Stack, release: tuple[int, int] = (1, 2)) -> Environment:
    """The environment, with its view at /prefix/view."""
    return environment(machine, wanted, where, view=Path("/prefix/view"), release=release, system="rhel8")


def spack(made: Environment) -> Any:
    """The content of ``spack.yaml``, read back as Spack reads it."""
    return yaml.safe_load(made.text)["spack"]


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize(("wanted", "release"), [("mpi", (1, 2)), ("horovod", (1, 2)), ("mpi", (0, 23))])
def test_shipped_sites_give_the_golden_environments(
    where: Places, name: str, wanted: str, release: tuple[int, int]
) -> None:
    text = made(where, load(RULES, name), load_stack(wanted), release).text
    golden = GOLDEN / f"{name}-{wanted}-{'.'.join(map(str, release))}.yaml"
    if os.environ.get("HIDL_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_a_compiler_is_an_external_package_with_its_programs(where: Places) -> None:
    gcc = spack(made(where, site(compilers={"gcc": GCC}), stack()))["packages"]["gcc"]
    assert gcc == {
        "externals": [
            {
                "spec": "gcc@13.3.0 languages='c,c++'",
                "prefix": "/opt/gcc",
                "extra_attributes": {"compilers": {"c": "/opt/gcc/bin/gcc", "cxx": "/opt/gcc/bin/g++"}},
            }
        ],
        "buildable": False,
    }


def test_before_spack_1_0_a_compiler_is_an_entry_of_its_own(where: Places) -> None:
    old = spack(made(where, site(compilers={"gcc": GCC | {"fortran": "gfortran"}}), stack(), (0, 23)))
    assert ("gcc" in old["packages"], old["compilers"]) == (
        False,
        [
            {
                "compiler": {
                    "spec": "gcc@=13.3.0",
                    "paths": {
                        "cc": "/opt/gcc/bin/gcc",
                        "cxx": "/opt/gcc/bin/g++",
                        "f77": "/opt/gcc/bin/gfortran",
                        "fc": "/opt/gcc/bin/gfortran",
                    },
                    "operating_system": "rhel8",
                    "target": "any",
                    "modules": [],
                }
            }
        ],
    )


def test_the_mpi_library_of_the_site_is_the_only_one(where: Places) -> None:
    packages = spack(made(where, site(mpi={"mpich": MPICH}, default_mpi="mpich"), stack()))["packages"]
    assert (packages["mpi"], packages["mpich"]) == (
        {"require": ["mpich@4.2.0"], "buildable": False},
        {"externals": [{"spec": "mpich@4.2.0", "prefix": "/opt/mpich"}], "buildable": False},
    )


A100 = {"node": {"arch": "x86_64", "cpu": "AMD EPYC 7763", "gpus": 4, "gpu_arch": "sm_80"}}
MI250X = {"node": {"arch": "x86_64", "cpu": "AMD EPYC 7A53", "gpus": 8, "gpu_arch": "gfx90a"}}


@pytest.mark.parametrize(
    ("family", "nodes", "variants"),
    [
        ("cray-mpich", A100, "+cuda cuda_arch=80 ~rocm"),
        ("cray-mpich", MI250X, "~cuda +rocm amdgpu_target=gfx90a"),
        ("cray-mpich", {"node": {"arch": "x86_64", "gpus": 0}}, ""),
        ("mvapich-plus", A100, "+cuda cuda_arch=80 ~rocm"),
        ("mvapich2-gdr", A100, "+cuda ~rocm"),
        ("mvapich2-gdr", MI250X, "~cuda +rocm"),
        ("openmpi", A100, ""),
        ("mpich", A100, ""),
    ],
)
def test_a_library_for_gpus_is_linked_with_that_of_the_sites_gpus(
    where: Places, family: str, nodes: dict[str, Any], variants: str
) -> None:
    mine = {"family": family, "version": "8.1.28", "prefix": "/opt/mpi"}
    packages = spack(made(where, site(node_types=nodes, mpi={"mine": mine}, default_mpi="mine"), stack()))["packages"]
    assert packages[family]["externals"][0]["spec"] == f"{family}@8.1.28 {variants}".strip()


def test_the_variants_of_a_library_are_those_of_the_sites_file_if_it_gives_some(where: Places) -> None:
    specs = []
    for family in ("cray-mpich", "openmpi"):
        mine = {"family": family, "version": "5.0", "prefix": "/opt/mpi", "variants": "+cuda cuda_arch=80,90"}
        machine = site(node_types=A100, mpi={"mine": mine}, default_mpi="mine", spack={"require": {family: ["+cuda"]}})
        specs.append(spack(made(where, machine, stack()))["packages"][family]["externals"][0]["spec"])
    assert specs == ["cray-mpich@5.0 +cuda cuda_arch=80,90", "openmpi@5.0 +cuda cuda_arch=80,90"]


def test_the_environment_is_resolved_for_the_nodes_and_not_for_this_machine(where: Places) -> None:
    document = spack(made(where, site(node_types=MI250X), stack()))
    assert document["concretizer"]["targets"] == {"host_compatible": False}
    assert document["packages"]["all"]["require"] == ["target=zen3"]


def test_what_is_missing_is_marked_in_the_environment(where: Places) -> None:
    text = made(where, site(mpi={"mine": {"family": "cray-mpich"}}, default_mpi="mine"), stack()).text
    assert [line for line in text.splitlines() if line.startswith("# Missing")] == [
        "# Missing: the compilers are unknown.",
        "# Missing: the version of MPI library mine is unknown.",
        "# Missing: the site file does not locate cray-mpich, and Spack cannot build it.",
    ]


@pytest.mark.parametrize("buildable", [False, True])
def test_software_of_the_site_is_the_only_one_unless_it_says_otherwise(where: Places, buildable: bool) -> None:
    cmake = {"version": "3.24.2", "prefix": "/opt/cmake"} | ({"buildable": True} if buildable else {})
    packages = spack(made(where, site(externals={"cmake": cmake}), stack()))["packages"]
    assert packages["cmake"] == {
        "externals": [{"spec": "cmake@3.24.2", "prefix": "/opt/cmake"}],
        "buildable": buildable,
    }


@pytest.mark.parametrize(
    ("library", "gap"),
    [
        ({"family": "cray-mpich"}, "the version of MPI library mine is unknown"),
        ({"family": "cray-mpich", "version": "8.1"}, "the prefix of MPI library mine is unknown"),
    ],
)
def test_what_the_site_does_not_say_is_reported_and_not_guessed(
    where: Places, library: dict[str, str], gap: str
) -> None:
    found = made(where, site(mpi={"mine": library}, default_mpi="mine", compilers={"gcc": GCC}), stack())
    assert (found.gaps, "externals" in found.document["spack"]["packages"]["cray-mpich"]) == ((gap,), False)


def test_modules_that_are_of_compilers_and_externals_alone_do_not_place_a_library(where: Places) -> None:
    gcc = {"version": "13.3.0", "modules": ["gcc/13"], "fortran": "gfortran"}
    software = {"compilers": {"gcc": gcc}, "default_compiler": "gcc"}
    libraries = [MPICH | {"prefix": None, "modules": ["gcc/13", *own]} for own in ([], ["mpich/4.2"])]
    found = [made(where, site(mpi={"mine": mine}, default_mpi="mine", **software), stack()) for mine in libraries]
    gap = "the prefix of MPI library mine is unknown"
    assert [(one.external_mpi, one.gaps) for one in found] == [(False, (gap,)), (True, ())]


def test_fortran_is_that_of_the_default_compiler_where_it_has_one(where: Places) -> None:
    old, new = GCC | {"fortran": "gfortran"}, GCC | {"version": "14.1.0"}
    chosen = [
        spack(made(where, site(compilers={"old": old, "new": new}, default_compiler=name), stack()))["packages"]
        for name in ("old", "new")
    ]
    assert [packages.get("fortran") for packages in chosen] == [{"require": ["gcc"], "prefer": ["gcc@13.3.0"]}, None]


def test_a_default_compiler_without_fortran_is_reported(where: Places) -> None:
    found = made(where, site(compilers={"gcc": GCC}, default_compiler="gcc"), stack())
    assert found.gaps == ("compiler gcc has no `fortran`: packages that require it cannot be built",)


def test_mvapich2_gdr_is_made_for_jsrun_where_that_alone_starts_its_ranks(where: Places) -> None:
    gdr = {"family": "mvapich2-gdr"}
    lone = site(scheduler="lsf", launchers=["jsrun"], mpi={"gdr": gdr}, default_mpi="gdr")
    either = site(launchers=["srun", "jsrun"], mpi={"gdr": gdr}, default_mpi="gdr")
    found = [spack(made(where, one, stack()))["packages"].get("mvapich2-gdr") for one in (lone, either)]
    assert found == [{"require": ["process_managers=jsrun", "pmi_version=pmi4pmix"]}, None]


@pytest.mark.parametrize(
    ("library", "lacks"),
    [
        ({"family": "cray-mpich"}, "Spack cannot build it"),
        ({"family": "mvapich2"}, "all its versions are deprecated in Spack"),
        ({"family": "mvapich2", "version": "2.3.7", "prefix": "/opt/mvapich2"}, None),
        ({"family": "mvapich2-gdr"}, None),
        (MPICH, None),
    ],
)
def test_a_library_that_spack_does_not_build_must_be_placed(
    where: Places, library: dict[str, str], lacks: str | None
) -> None:
    assert made(where, site(mpi={"mine": library}, default_mpi="mine"), stack()).lacks_mpi == lacks


@pytest.mark.parametrize(("keys", "release"), [({"deprecated": "for a reason"}, (1, 2)), ({}, (0, 23))])
def test_a_deprecated_library_is_built_where_it_is_allowed(
    where: Places, keys: dict[str, str], release: tuple[int, int]
) -> None:
    machine = site(mpi={"mine": {"family": "mvapich2"}}, default_mpi="mine")
    assert made(where, machine, stack(**keys), release).lacks_mpi is None


def test_what_is_fetched_is_staged_apart_and_is_the_same_otherwise(where: Places, tmp_path: Path) -> None:
    here = made(where, site(), stack())
    apart = here.staged_in(tmp_path)
    assert (spack(apart)["config"].pop("build_stage"), apart.inputs) == ([str(tmp_path)], here.inputs)


def test_an_external_without_a_version_is_left_out_and_reported(where: Places) -> None:
    found = made(where, site(externals={"cuda": {"prefix": "/opt/cuda"}}, compilers={"gcc": GCC}), stack())
    assert ("cuda" in found.document["spack"]["packages"], found.gaps) == (False, ("the version of cuda is unknown",))


def test_an_external_says_its_modules_and_how_it_was_built(where: Places) -> None:
    hdf5 = {"version": "1.14", "modules": ["hdf5/1.14"], "variants": "+mpi ~shared"}
    packages = spack(made(where, site(externals={"hdf5": hdf5}), stack()))["packages"]
    assert packages["hdf5"]["externals"] == [{"spec": "hdf5@1.14 +mpi ~shared", "modules": ["hdf5/1.14"]}]


def test_constraints_of_stack_and_site_are_lists_of_their_own_each_once(where: Places) -> None:
    machine = site(spack={"require": {"py-torch": ["~distributed", "+mpi"]}})
    packages = spack(made(where, machine, stack(require={"py-torch": ["@2.5:", "+mpi"]})))["packages"]
    assert packages["py-torch"]["require"] == ["@2.5:", "+mpi", "~distributed"]


@pytest.mark.parametrize("number", [4, None])
def test_gpus_of_nvidia_decide_variants_even_where_their_number_is_unknown(where: Places, number: int | None) -> None:
    nodes = {"node": {"arch": "x86_64", "gpus": number, "gpu_arch": "sm_80"}}
    assert spack(made(where, site(node_types=nodes), stack()))["packages"]["all"] == {
        "require": ["target=x86_64"],
        "variants": ["+cuda", "cuda_arch=80", "~rocm"],
    }


def test_deprecated_versions_are_allowed_where_the_stack_says_why_and_with_a_warning(where: Places) -> None:
    plain, admitted = made(where, site(), stack()), made(where, site(), stack(deprecated="CVE-1 is fixed by patches"))
    assert ("deprecated" in plain.document["spack"]["config"], admitted.document["spack"]["config"]["deprecated"]) == (
        False,
        True,
    )
    assert admitted.warnings == ("deprecated versions are allowed: CVE-1 is fixed by patches",)


def test_mirrors_and_build_caches_are_distinguished(where: Places) -> None:
    machine = site(spack={"mirrors": {"centre": "/mirror"}, "build_caches": {"centre": "https://cache.example/1"}})
    assert spack(made(where, machine, stack()))["mirrors"] == {
        "centre": {"url": "/mirror", "source": True, "binary": False},
        "centre-binaries": {"url": "https://cache.example/1", "source": False, "binary": True, "signed": True},
    }


@pytest.mark.parametrize("kind", ["lmod", "tcl"])
def test_modulefiles_of_spack_are_made_where_the_site_wants_them(where: Places, kind: str) -> None:
    modules = spack(made(where, site(spack={"modules": kind}), stack()))["modules"]["default"]
    assert modules == {"enable": [kind], "roots": {kind: "/shared/spack/modules"}, kind: {"hide_implicits": True}}


def test_without_a_local_clone_spack_clones_a_release_of_its_packages(where: Places) -> None:
    from dataclasses import replace

    repos = spack(made(replace(where, builtin=None), site(), stack()))["repos"]
    assert (list(repos), repos["builtin"]["tag"]) == (["hidl", "builtin"], "v2026.03.0")


def test_roots_that_come_as_wheels_are_not_built_where_the_site_wants_that(where: Places) -> None:
    wanted = stack(specs=["py-mpi4py@4:", "py-numpy@2:"], wheels=["py-numpy"])
    specs = [spack(made(where, site(spack={"wheels": wheels}), wanted))["specs"] for wheels in (False, True)]
    assert specs == [["py-mpi4py@4:", "py-numpy@2:"], ["py-mpi4py@4:"]]


def test_the_inputs_know_what_decides_and_not_where_things_lie(where: Places) -> None:
    from dataclasses import replace

    here = made(where, site(compilers={"gcc": GCC}), stack())
    there = made(replace(where, root=Path("/elsewhere")), site(compilers={"gcc": GCC}), stack())
    other = made(where, site(compilers={"gcc": GCC | {"version": "14.1.0"}}), stack())
    assert (here.inputs == there.inputs, here.inputs == other.inputs) == (True, False)


def test_a_stack_without_specs_is_refused(where: Places) -> None:
    with pytest.raises(InvalidInput, match="has no specs for Spack"):
        made(where, site(), stack(specs=[]))


@pytest.mark.parametrize("name", SITES)
def test_every_site_and_stack_gives_an_environment_of_the_known_form(where: Places, name: str) -> None:
    from jsonschema import Draft202012Validator

    schema = json.loads((Path(__file__).parent / "environment.schema.json").read_text(encoding="utf-8"))
    machine = load(RULES, name)
    validator = Draft202012Validator(schema)
    for wanted in STACKS:
        for release in ((1, 2), (0, 23)):
            validator.validate(made(where, machine, wanted, release).document)


def test_the_real_schemas_of_spack_accept_every_environment(where: Places) -> None:
    root = os.environ.get("HIDL_TEST_SPACK")
    if not root:
        pytest.skip("NOT TESTED: Spack's own JSON schemas; make spack-tests")
    texts = [made(where, load(RULES, name), wanted).text for name in SITES for wanted in STACKS]
    code = (
        "import json, sys, yaml, jsonschema, spack.schema.env as env\n"
        "for text in json.load(sys.stdin): jsonschema.validate(yaml.safe_load(text), env.schema)\n"
    )
    validated = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts),
        env=os.environ | {"PYTHONPATH": f"{root}/lib/spack"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert validated.returncode == 0, validated.stderr[-2000:]


def test_sections_of_the_site_are_merged_into_the_generated_ones(where: Places) -> None:
    config = {
        "config": {"build_stage": ["$tempdir"], "installer": "new"},
        "packages": {"zlib": {"require": ["+pic"]}, "all": {"permissions": {"group": "hpc"}}},
        "env_vars": {"set": {"A": "1"}},
    }
    plain = spack(made(where, site(compilers={"gcc": GCC}), stack()))
    merged = spack(made(where, site(compilers={"gcc": GCC}, spack={"config": config}), stack()))
    assert merged["config"] == plain["config"] | {"build_stage": ["$tempdir"], "installer": "new"}
    assert merged["packages"] == plain["packages"] | {
        "zlib": {"require": ["+pic"]},
        "all": plain["packages"]["all"] | {"permissions": {"group": "hpc"}},
    }
    assert merged["env_vars"] == {"set": {"A": "1"}}
    with pytest.raises(ValueError, match="Input should be"):
        site(spack={"config": {"specs": ["zlib"]}})


def test_included_files_are_known_by_their_content(where: Places, tmp_path: Path) -> None:
    file, directory = tmp_path / "packages.yaml", tmp_path / "scope"
    file.write_text("packages: {}\n")
    directory.mkdir()
    (directory / "config.yaml").write_text("config: {}\n")
    machine = site(spack={"include": [str(file), str(directory)]})
    assert spack(made(where, machine, stack()))["include"] == [str(file), str(directory)]
    before = included_files(machine)
    (directory / "config.yaml").write_text("config: {ccache: true}\n")
    after = included_files(machine)
    assert [name for name in before if before[name] != after[name]] == [f"include {directory}"]
    file.unlink()
    with pytest.raises(MissingPrecondition, match=r"packages\.yaml, which is listed in `spack\.include` of site here"):
        included_files(machine)


def test_a_centres_own_files_may_place_an_mpi_library_that_the_site_file_does_not(where: Places) -> None:
    machine = load(RULES, "frontier")
    assert made(where, machine, load_stack("mpi")).lacks_mpi is not None
    knows = machine.model_copy(
        update={"spack": machine.spack.model_copy(update={"include": ["/centre/packages.yaml"]})}
    )
    assert made(where, knows, load_stack("mpi")).lacks_mpi is None


def test_upstreams_reuse_and_padding_are_settings_of_the_site(where: Places) -> None:
    settings: dict[str, Any] = {"upstreams": {"centre": "/opt/spack/store"}, "reuse": True, "padded_length": 128}
    plain, chosen = made(where, site(), stack()), made(where, site(spack=settings), stack())
    assert spack(chosen)["upstreams"] == {"centre": {"install_tree": "/opt/spack/store"}}
    assert spack(chosen)["concretizer"]["reuse"] is True
    assert spack(chosen)["config"]["install_tree"] == {"root": "/shared/spack/store", "padded_length": 128}
    only_padded = made(where, site(spack={"upstreams": settings["upstreams"], "padded_length": 128}), stack())
    assert only_padded.inputs == plain.inputs


@pytest.mark.parametrize("missing", [-5, 0, 1, 2, 26, 27, 28, 29, 53, 54, 55, 56, 150])
def test_packages_are_found_in_padded_stores(where: Places, tmp_path: Path, missing: int) -> None:
    """Spack fills the path with this name and cuts it off; a cut after a slash becomes an underscore."""
    root = tmp_path / "spack" / "store"
    filling = ("__spack_path_placeholder__/" * 9)[: max(0, missing - 1)]
    tree = root / (f"{filling[:-1]}_" if filling.endswith("/") else filling)
    machine = site(spack={"padded_length": len(str(root)) + missing, "upstreams": {"centre": str(root)}})
    places = replace(where, root=tmp_path)
    assert made(places, machine, stack()).tree == tree
    index_of(tree).parent.mkdir(parents=True)
    index_of(tree).write_text('{"database": {"installs": {"abc": {"installed": true, "path": "/p"}}}}')
    found = made(places, machine, stack())
    assert spack(found)["upstreams"] == {"centre": {"install_tree": str(tree)}}
    assert prefixes(found.tree) == {"abc": Path("/p")}


def test_packages_of_a_store_before_it_was_padded_are_not_its_own(where: Places, tmp_path: Path) -> None:
    index_of(tmp_path / "spack" / "store").parent.mkdir(parents=True)
    index_of(tmp_path / "spack" / "store").write_text('{"database": {"installs": {"abc": {"installed": true}}}}')
    assert prefixes(made(replace(where, root=tmp_path), site(), stack()).tree)
    assert not prefixes(made(replace(where, root=tmp_path), site(spack={"padded_length": 200}), stack()).tree)


def test_modulefiles_of_lmod_name_their_core_compilers(where: Places) -> None:
    machine = site(compilers={"gcc": GCC}, default_compiler="gcc", spack={"modules": "lmod"})
    assert spack(made(where, machine, stack()))["modules"]["default"] == {
        "enable": ["lmod"],
        "roots": {"lmod": "/shared/spack/modules"},
        "lmod": {"hide_implicits": True, "core_compilers": ["gcc@13.3.0"]},
    }


def test_builds_in_a_job_use_all_cores_of_its_node(where: Places) -> None:
    nodes = {"node": {"arch": "x86_64", "gpus": 0}, "build": {"arch": "x86_64", "gpus": 0, "cores": 64}}
    partitions = {name: {"node_type": name} for name in nodes}
    settings = {"build_on": "allocation", "partition": "build", "concurrent_packages": 4, "stage": "$tempdir/$user"}
    machine = site(node_types=nodes, partitions=partitions, default_partition="node", spack=settings)
    config = spack(made(where, machine, stack()))["config"]
    assert (config["build_jobs"], config["concurrent_packages"]) == (64, 4)
    assert "build_jobs" not in spack(made(where, site(), stack()))["config"]
    assert places(machine, Path("/root"), None).stage == Path("$tempdir/$user")
