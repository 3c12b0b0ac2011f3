"""Which GPUs a wheel's kernels serve, and what is read from a wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from hidl_cli.site.load import load_site
from hidl_cli.stack import target
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.schema import find_unserved, load_wheels
from tools.wheel_architectures import read


@pytest.mark.parametrize(
    ("version", "arch", "last"),
    [("2.13.0", "sm_70", "2.10.0"), ("2.10.0", "sm_60", "2.7.1"), ("2.6.0", "sm_37", None), ("2.13.0", "sm_86", "")],
)
def test_an_unserved_gpu_gets_the_last_release_that_serves_it(version: str, arch: str, last: str | None) -> None:
    found = find_unserved("torch", version, [arch], "x86_64")
    if last == "":
        assert found is None
    else:
        said = str(found)
        assert said.startswith(f"its torch {version} has kernels for sm_")
        assert said.endswith(f"supports it is {last}" if last else "no known release supports it")


@pytest.mark.parametrize("version", ["2.5.0", "2.13.0+cu126"])
def test_releases_that_the_table_lacks_are_not_judged(version: str) -> None:
    assert find_unserved("torch", version, ["sm_37"], None) is None


def test_a_stack_whose_kernels_serve_no_gpu_of_the_nodes_is_refused() -> None:
    node = load_site("pitzer").node_type("gpu-dual")
    said = target.reason_without_gpu(load_stack("pytorch"), {"torch": "2.13.0"}, [], node)
    assert said is not None
    assert "not for sm_70; the last release that supports it is 2.10.0" in said
    assert target.reason_without_gpu(load_stack("pytorch"), {"torch": "2.10.0"}, [], node) is None


@pytest.mark.parametrize(
    ("site", "version", "reason"),
    [
        ("frontier", "2.13.0", "its torch 2.13.0 was not built for the GPUs of the nodes (AMD MI250X (one die))"),
        ("frontier", "2.13.0+rocm6.4", None),
        (
            "aurora",
            "2.13.0",
            "its torch 2.13.0 was not built for the GPUs of the nodes (Intel Data Center GPU Max 1550)",
        ),
        (
            "perlmutter",
            "2.13.0+rocm6.4",
            "its torch 2.13.0+rocm6.4 was not built for the GPUs of the nodes (NVIDIA A100)",
        ),
    ],
)
def test_a_build_for_another_vendors_gpus_is_refused(site: str, version: str, reason: str | None) -> None:
    node = load_site(site).node_type()
    said = target.reason_without_gpu(load_stack("pytorch"), {"torch": version}, [], node)
    assert said == reason or (reason is not None and said is not None and said.startswith(reason[:-2]))


def test_the_table_holds_each_release_once() -> None:
    keys = [(wheel.package, wheel.version, wheel.platform) for wheel in load_wheels()]
    assert len(keys) == len(set(keys))
    assert all(wheel.architectures and wheel.order for wheel in load_wheels())


def test_a_wheel_of_pytorch_is_read(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch/version.py", "__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip = None\n")
        flags = b"sm_75 sm_80 sm_100 compute_120\0"
        archive.writestr("torch/lib/libtorch_python.so", b"\x7fELF sm_x \0" + bytes(1 << 16) + flags + bytes(99))
    assert read(wheel) == {
        "package": "torch",
        "version": "2.13.0",
        "platform": "linux-x86_64",
        "cuda": "13.0",
        "architectures": ["sm_75", "sm_80", "sm_100", "compute_120"],
    }


@pytest.mark.parametrize(
    "info",
    [
        """collections.OrderedDict([('cuda_compute_capabilities', ['sm_60', 'sm_70', 'compute_90']),
        ('cuda_version', '12.5.1'), ('is_cuda_build', True)])""",  # as in the wheels of 2.18 to 2.21
        '{"cuda_compute_capabilities": ["sm_60", "sm_70", "compute_90"], "cuda_version": "12.5.1"}',
    ],
)
def test_a_wheel_of_tensorflow_is_read(info: str, tmp_path: Path) -> None:
    wheel = tmp_path / "tensorflow-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tensorflow/python/platform/build_info.py", f"import collections\n\nbuild_info = {info}\n")
    found = read(wheel)
    assert (found["cuda"], found["architectures"]) == ("12.5.1", ["sm_60", "sm_70", "compute_90"])


def test_other_wheels_are_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "numpy-2.0.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    zipfile.ZipFile(wheel, "w").close()
    with pytest.raises(ValueError, match="only wheels of torch and tensorflow"):
        read(wheel)
