"""The wheels provider: real uv on small indexes and wheelhouses in directories."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.errors import BuildFailed, HidlError, MissingPrecondition
from hidl_cli.site.load import load_site
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.lock import Lock, Package
from hidl_cli.stack.pip_settings import read
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers.wheels import WheelInstaller
from hidl_cli.stack.schema import Accelerator, Stack, Variant
from hidl_cli.stack.target import Target, detect
from tests.stack.wheelhouse import make_index, make_wheel


@pytest.fixture
def target() -> Target:
    return detect(load_site("local"), load_stack("mpi"))


def provider(tmp_path: Path, **pip: str) -> WheelInstaller:
    """uv with these settings of pip alone, and a cache of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environ = kept | {"PIP_CONFIG_FILE": "/dev/null", "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_HTTP_RETRIES": "0"}
    environ |= {f"PIP_{name.upper()}": value for name, value in pip.items()}
    return WheelInstaller(read(load_site("local").wheels, environ), environ)


def stack(**packages: str) -> Stack:
    return Stack(name="toy", title="a toy", mpi="mpich", packages=packages)


def versions(uv: WheelInstaller, wanted: Stack, target: Target, *, offline: bool = False) -> dict[str, str]:
    lock = uv.resolve(wanted, target, offline=offline)
    assert all(package.hashes for package in lock.packages)
    return {package.name: package.version for package in lock.packages}


def test_this_machine_is_a_target(target: Target) -> None:
    assert target.python == f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert target.platform == f"{sys.platform}-{platform.machine()}"


def test_a_wheelhouse_alone_serves(tmp_path: Path, target: Target) -> None:
    house = tmp_path / "a house, with $odd 'name'"
    make_wheel(house, "one", "1.0", requires=["two>=1"])
    make_wheel(house, "two", "1.5")
    make_index(tmp_path / "links", [])
    uv = WheelInstaller(
        read(
            load_site("local").wheels.model_copy(update={"find_links": [str(house)]}), {"PIP_CONFIG_FILE": "/dev/null"}
        ),
        provider(tmp_path).environ,
    )
    assert versions(uv, stack(one=""), target, offline=True) == {"one": "1.0", "two": "1.5"}


def test_an_index_that_lacks_a_package_does_not_hide_the_next(tmp_path: Path, target: Target) -> None:
    first = make_index(tmp_path / "first", [make_wheel(tmp_path / "files", "one", "1.0")])
    second = make_index(tmp_path / "second", [make_wheel(tmp_path / "files", "two", "1.0")])
    uv = provider(tmp_path, index_url=second, extra_index_url=first)
    assert versions(uv, stack(one="", two=""), target) == {"one": "1.0", "two": "1.0"}


def test_an_index_with_an_unsuitable_version_does_not_hide_the_next(tmp_path: Path, target: Target) -> None:
    old = make_index(tmp_path / "old", [make_wheel(tmp_path / "files", "one", "1.0")])
    new = make_index(tmp_path / "new", [make_wheel(tmp_path / "files", "one", "2.0")])
    uv = provider(tmp_path, index_url=new, extra_index_url=old)
    assert versions(uv, stack(one=">=2"), target) == {"one": "2.0"}


def test_torch_is_the_cpu_build_of_the_wheelhouse(tmp_path: Path, target: Target) -> None:
    house = tmp_path / "house"
    make_wheel(house, "torch", "2.9.0+cpu")
    index = make_index(tmp_path / "index", [make_wheel(tmp_path / "f", "torch", "3.0", requires=["nvidia_cublas"])])
    make_index(tmp_path / "index", [make_wheel(tmp_path / "f", "nvidia_cublas", "1.0")])
    uv = provider(tmp_path, index_url=index, find_links=str(house))
    assert versions(uv, stack(torch=">=2.5"), target) == {"torch": "2.9.0+cpu"}


def test_a_wheel_of_torch_for_another_machine_is_not_taken(tmp_path: Path, target: Target) -> None:
    house = tmp_path / "house"
    made = make_wheel(house, "torch", "2.9.0+cpu")
    made.rename(house / f"torch-2.9.0+cpu-{target.python}-{target.python}-manylinux_2_28_x86_64.whl")
    uv = provider(tmp_path, find_links=str(house), no_index="1")
    on_x86, on_arm = (replace(target, platform=f"linux-{machine}") for machine in ("x86_64", "aarch64"))
    assert versions(uv, stack(torch=">=2.5"), on_x86) == {"torch": "2.9.0+cpu"}
    with pytest.raises(HidlError) as refused:
        uv.resolve(stack(torch=">=2.5"), on_arm, offline=True)
    assert "torch==2.9.0+cpu" not in str(refused.value)


def test_where_no_wheel_is_for_the_machine_spack_is_named(tmp_path: Path, target: Target) -> None:
    made = make_wheel(tmp_path / "files", "torch", "2.15.0")
    foreign = made.rename(made.parent / f"torch-2.15.0-{target.python}-{target.python}-manylinux_2_28_ppc64le.whl")
    uv = provider(tmp_path, index_url=make_index(tmp_path / "index", [foreign]))
    with pytest.raises(BuildFailed, match="no wheels with a matching platform tag") as refused:
        uv.resolve(stack(torch=">=2.5"), replace(target, accelerator="cuda"), offline=False)
    assert refused.value.hint == "build the stack with --provider spack"


@pytest.mark.parametrize(
    ("first", "second"), [("nvidia_nccl_cu12", "nvidia_nccl_cu13"), ("cupy_cuda13x", "cupy_cuda12x")]
)
def test_builds_for_two_versions_of_cuda_are_refused(tmp_path: Path, target: Target, first: str, second: str) -> None:
    house = tmp_path / "house"
    for name in (first, second, "nvidia_cublas_cu12"):
        make_wheel(house, name, "1.0")
    uv = provider(tmp_path, find_links=str(house), no_index="1")
    on_gpus = replace(target, platform="linux-x86_64", accelerator="cuda")
    assert set(versions(uv, stack(nvidia_cublas_cu12="", **{second: ""}), on_gpus)) == {
        "nvidia-cublas-cu12",
        second.replace("_", "-"),
    }
    with pytest.raises(BuildFailed, match="several CUDA versions, whose files conflict") as refused:
        uv.resolve(stack(nvidia_cublas_cu12="", **{first: "", second: ""}), on_gpus, offline=True)
    assert " and ".join(sorted([first, second])).replace("_", "-") in str(refused.value)
    assert refused.value.hint is not None
    assert refused.value.hint.endswith("the last PyTorch for CUDA 12 is torch<=2.10.0")


def test_cuda_is_never_chosen_on_a_machine_without_a_gpu(tmp_path: Path, target: Target) -> None:
    wheels = [make_wheel(tmp_path / "files", "one", "1.0", requires=["nvidia-cublas"])]
    wheels.append(make_wheel(tmp_path / "files", "nvidia_cublas", "1.0"))
    files = tmp_path / "index"
    make_index(files, wheels)
    (files / "nvidia_cublas").rename(files / "nvidia-cublas")
    with pytest.raises(BuildFailed, match="is for CPUs but resolves to CUDA packages: nvidia-cublas"):
        provider(tmp_path, index_url=files.as_uri()).resolve(stack(one=""), target, offline=False)


def releases_of_torch(tmp_path: Path) -> str:
    """An index that has three releases, for CUDA."""
    files, index = tmp_path / "f", tmp_path / "index"
    needs = ["nvidia_cublas"]
    made = [make_wheel(files, "torch", version, requires=needs) for version in ("2.7.1", "2.10.0", "2.15.0")]
    make_index(index, [*made, make_wheel(files, "nvidia_cublas", "1.0")])
    (index / "nvidia_cublas").rename(index / "nvidia-cublas")
    return index.as_uri()


@pytest.mark.parametrize(
    ("gpus", "torch", "gpu"),
    [
        (("sm_80",), "2.15.0", None),
        (("sm_70",), "2.10.0", "sm_70"),
        (("sm_90", "sm_70"), "2.10.0", "sm_70"),
        (("sm_60",), "2.7.1", "sm_60"),
        (("sm_80", "sm_37"), "2.15.0", None),
        ((), "2.15.0", None),
    ],
)
def test_gpus_get_the_last_release_with_kernels_for_them(
    tmp_path: Path, target: Target, gpus: tuple[str, ...], torch: str, gpu: str | None
) -> None:
    house = tmp_path / "house"
    make_wheel(house, "torch", "2.15.0+cpu")  # comes before 2.15.0, and has no kernels
    uv = provider(tmp_path, index_url=releases_of_torch(tmp_path), find_links=str(house))
    on_x86 = replace(target, platform="linux-x86_64", accelerator="cuda", gpus=gpus)
    lock = uv.resolve(stack(torch=">=2.5"), on_x86, offline=False)
    assert (lock.version("torch"), lock.gpu) == (torch, gpu)


@pytest.mark.parametrize(
    ("accelerator", "machine", "expected"),
    [
        ("cpu", "x86_64", {"lean-cpu": "1.0"}),
        ("cuda", "x86_64", {"lean": "1.0", "nvidia-lib": "1.0"}),
        ("cpu", "aarch64", {"lean": "1.0"}),
    ],
)
def test_a_variant_takes_the_place_of_what_it_is_for(
    tmp_path: Path, target: Target, accelerator: Accelerator, machine: str, expected: dict[str, str]
) -> None:
    files, index = tmp_path / "files", tmp_path / "index"
    extra = ["nvidia-lib; extra == 'cuda'"]
    made = [make_wheel(files, "lean", "1.0", extra), make_wheel(files, "lean_cpu", "1.0")]
    make_index(index, [*made, make_wheel(files, "nvidia_lib", "1.0")])
    for name in ("lean_cpu", "nvidia_lib"):
        (index / name).rename(index / name.replace("_", "-"))
    keys = {"cuda": {"requirements": ["lean[cuda]"]}, "cpu": {"requirements": ["lean"], "machines": ["aarch64"]}}
    variants = {name: Variant(instead_of=["lean-cpu"], **each) for name, each in keys.items()}
    asked = stack(**{"lean-cpu": ""}).model_copy(update={"devices": ["cpu", "gpu"], "variants": variants})
    there = replace(target, platform=f"linux-{machine}", accelerator=accelerator)
    assert versions(provider(tmp_path, index_url=index.as_uri()), asked, there) == expected


def test_gpus_that_no_release_serves_are_refused(tmp_path: Path, target: Target) -> None:
    uv = provider(tmp_path, index_url=releases_of_torch(tmp_path))
    old = replace(target, platform="linux-x86_64", accelerator="cuda", gpus=("sm_37",))
    with pytest.raises(MissingPrecondition, match=r"not for sm_37; no known release supports it"):
        uv.resolve(stack(torch=">=2.5"), old, offline=False)


def test_gpus_whose_last_release_the_stack_cannot_hold_are_refused(tmp_path: Path, target: Target) -> None:
    uv = provider(tmp_path, index_url=releases_of_torch(tmp_path))
    old = replace(target, platform="linux-x86_64", accelerator="cuda", gpus=("sm_70",))
    with pytest.raises(MissingPrecondition, match=r"supports it is 2\.10\.0, but its requirements exclude") as caught:
        uv.resolve(stack(torch=">=2.11"), old, offline=False)
    assert "torch>=2.11 and torch<=2.10.0" in caught.value.message


def test_cuda_is_not_for_other_gpus(tmp_path: Path, target: Target) -> None:
    uv = provider(tmp_path, index_url=releases_of_torch(tmp_path))
    with pytest.raises(BuildFailed, match="is for GPUs of another vendor but resolves to CUDA packages") as caught:
        uv.resolve(stack(torch=""), replace(target, accelerator="rocm", gpus=("gfx90a",)), offline=False)
    assert "UV_TORCH_BACKEND=rocm6.4" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("locked", "in_house", "backend"),
    [("2.9.0+cpu", True, None), ("2.9.0+cpu", False, "cpu"), ("2.9.0+cu128", False, "cu128"), ("2.9.0", False, None)],
)
def test_the_locked_build_of_torch_comes_from_the_wheelhouse_or_from_its_own_index(
    tmp_path: Path, target: Target, locked: str, in_house: bool, backend: str | None
) -> None:
    make_wheel(tmp_path / "house", "torch", locked if in_house else "1.0+cpu")
    lock = Lock("toy", "cp311", "linux-x86_64", None, "cpu", (), (Package("torch", locked, ("0" * 64,)),))
    plan = InstallPlan("local", "toy", "a toy", tmp_path / "root", target, lock, tmp_path / "lock.txt", (), ())
    argv = provider(tmp_path, find_links=str(tmp_path / "house")).steps(plan)[-1].argv
    assert (argv[argv.index("--torch-backend") + 1] if "--torch-backend" in argv else None) == backend


def test_offline_names_every_requirement_that_cannot_be_had(tmp_path: Path, target: Target) -> None:
    make_wheel(tmp_path / "house", "one", "1.0")
    uv = provider(tmp_path, find_links=str(tmp_path / "house"))
    with pytest.raises(MissingPrecondition) as caught:
        uv.resolve(stack(one="", two=">=2", three=""), target, offline=True)
    assert "missing: three, two>=2" in caught.value.message


def test_what_no_index_has_is_reported_in_the_words_of_uv(tmp_path: Path, target: Target) -> None:
    index = make_index(tmp_path / "index", [])
    with pytest.raises(BuildFailed) as caught:
        provider(tmp_path, index_url=index).resolve(stack(one=""), target, offline=False)
    assert "failed to resolve stack toy" in caught.value.message
    assert "one was not found" in caught.value.message


def test_no_network_is_reported_without_the_password(tmp_path: Path, target: Target) -> None:
    uv = provider(tmp_path, index_url="http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(HidlError) as caught:
        uv.resolve(stack(one=""), target, offline=False)
    assert isinstance(caught.value, MissingPrecondition)
    assert "the package index cannot be reached" in caught.value.message
    assert "secret" not in caught.value.message + str(caught.value.hint)
