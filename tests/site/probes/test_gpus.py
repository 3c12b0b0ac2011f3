"""GPUs of this host, as `nvidia-smi` and `rocm-smi` tell; and what compilers call them."""

from __future__ import annotations

import pytest

from hidl_cli.site.probes import host
from hidl_cli.site.probes.host import Cards, architecture
from tests.site.recording import DIRECTORY, RecordedHost, recorded

QUERY = "nvidia-smi --query-gpu=name,compute_cap,memory.total --format=csv,noheader,nounits"


def nvidia(text: str) -> RecordedHost:
    return RecordedHost(DIRECTORY / "none", programs={"nvidia-smi": "/usr/bin/nvidia-smi"}, answers={QUERY: text})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA H200, 9.0, 143771\n", Cards(1, "NVIDIA H200", "sm_90", 140.4, "nvidia-smi")),
        (
            "NVIDIA A100-SXM4-40GB, 8.0, 40960\n" * 4,
            Cards(4, "NVIDIA A100-SXM4-40GB", "sm_80", 40.0, "nvidia-smi"),
        ),
        (
            "Tesla T4, 7.5, 15360\nNVIDIA A40, 8.6, 46068\n",
            Cards(2, "Tesla T4, NVIDIA A40", None, None, "nvidia-smi"),
        ),
        ("Quadro RTX 5000, [N/A], [N/A]\n", Cards(1, "Quadro RTX 5000", None, None, "nvidia-smi")),
        ("No devices were found\n", None),
    ],
    ids=["H200", "four A100", "two models", "an old driver", "none"],
)
def test_nvidia_smi_reports_model_architecture_and_memory(text: str, expected: Cards | None) -> None:
    assert host.probe_gpus(nvidia(text)) == expected


def answering(command: str, text: str) -> RecordedHost:
    program = command.split(maxsplit=1)[0]
    return RecordedHost(DIRECTORY / "none", programs={program: f"/usr/bin/{program}"}, answers={command: text})


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        (
            "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits",
            "Tesla V100-SXM2-16GB, 16160\n" * 2,
            Cards(2, "Tesla V100-SXM2-16GB", None, 15.8, "nvidia-smi"),
        ),
        (
            "rocm-smi --showproductname --showmeminfo vram --json",
            '{"card0": {"Card series": "Instinct MI100", "GFX Version": "gfx908"}, "system": {}}',
            Cards(1, "Instinct MI100", "gfx908", None, "rocm-smi"),
        ),
        (
            "amd-smi static --asic --vram --json",
            '[{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},'
            ' "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}}}]',
            Cards(1, "AMD Instinct MI300X", "gfx942", 192.0, "amd-smi"),
        ),
        (
            "amd-smi static --asic --vram --json",
            '{"gpu_data": [{"gpu": 0, "asic": "N/A", "vram": {"size": "65520 MB"}}]}',
            Cards(1, None, None, 64.0, "amd-smi"),
        ),
        ("amd-smi static --asic --vram --json", "[]", None),
        ("amd-smi static --asic --vram --json", "no GPU", None),
        (
            "xpu-smi discovery -j",
            '{"device_list": [{"device_id": 0, "device_name": "Intel(R) Data Center GPU Max 1550"},'
            ' {"device_type": "FPGA"}]}',
            Cards(1, "Intel(R) Data Center GPU Max 1550", None, None, "xpu-smi"),
        ),
        ("xpu-smi discovery -j", '{"error": "no device"}', None),
    ],
)
def test_tools_of_all_makers_in_their_forms_are_read(command: str, text: str, expected: Cards | None) -> None:
    assert host.probe_gpus(answering(command, text)) == expected


@pytest.mark.parametrize(
    ("printed", "name"),
    [("gfx9010", "gfx90a"), ("gfx90a", "gfx90a"), ("gfx9412", "gfx94c"), ("gfx942", "gfx942"), ("gfx1030", "gfx1030")],
)
def test_the_stepping_of_an_architecture_is_hexadecimal(printed: str, name: str) -> None:
    text = f'{{"card0": {{"Card Series": "it", "GFX Version": "{printed}"}}}}'
    cards = host.probe_gpus(answering("rocm-smi --showproductname --showmeminfo vram --json", text))
    assert cards is not None
    assert cards.arch == name


def test_rocm_smi_reports_the_same_of_amds() -> None:
    assert host.probe_gpus(recorded("mi250x")) == Cards(8, "AMD Instinct MI250X", "gfx90a", 64.0, "rocm-smi")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("a100", "sm_80"),
        ("a100_80gb", "sm_80"),
        ("NVIDIA A100-SXM4-40GB", "sm_80"),
        ("nvidia_h100_80gb_hbm3", "sm_90"),
        ("NVIDIA GH200 480GB", "sm_90"),
        ("Tesla V100-SXM2-16GB", "sm_70"),
        ("v100s", "sm_70"),
        ("Quadro RTX 5000", "sm_75"),
        ("tesla_t4", "sm_75"),
        ("NVIDIA A10", "sm_86"),
        ("AMD Instinct MI250X", "gfx90a"),
        ("mi300a", "gfx942"),
        ("gb200", None),
        ("1g.5gb", None),
        ("v1000", None),
        ("gtx4", None),
        ("", None),
        (None, None),
    ],
)
def test_the_architecture_follows_from_the_model_where_it_is_known(model: str | None, expected: str | None) -> None:
    assert architecture(model) == expected
