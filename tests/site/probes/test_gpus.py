"""GPUs of this host, as `nvidia-smi` and `rocm-smi` tell; and what compilers call them."""

from __future__ import annotations

import pytest

from hidl_cli.site.probes import gpus
from hidl_cli.site.probes.gpus import Cards, architecture
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
    assert gpus.probe(nvidia(text)) == expected


def test_rocm_smi_reports_the_same_of_amds() -> None:
    assert gpus.probe(recorded("mi250x")) == Cards(8, "AMD Instinct MI250X", "gfx90a", 64.0, "rocm-smi")


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
