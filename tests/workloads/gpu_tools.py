"""Stand-ins for the tools that list GPUs: this machine has none, and they print what real ones print."""

from __future__ import annotations

from pathlib import Path

#: What `nvidia-smi -L` prints for two instances of one GPU (NVIDIA's MIG user guide).
MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa-0)
  MIG 3g.20gb     Device  0: (UUID: MIG-1111)
  MIG 1g.5gb      Device  1: (UUID: MIG-2222)
"""


def nvidia(directory: Path, count: int, *, instances: bool = False) -> Path:
    """Write an nvidia-smi that lists ``count`` GPUs, the first with MIG ``instances``; returns its directory."""
    mode = "Enabled" if instances else "Disabled"
    rows = [f"GPU-aaaa-{number}, NVIDIA A100-SXM4-40GB, 40960, 580.65.06, {mode}" for number in range(count)]
    names = ["NVIDIA A100-SXM4-40GB"] * count
    text = f"""\
case "$*" in
*query-gpu=uuid*) cat << 'END'
{chr(10).join(rows)}
END
;;
*query-gpu=name*) cat << 'END'
{chr(10).join(names)}
END
;;
-L) cat << 'END'
{MIG}END
;;
esac
"""
    return _write(directory, text)


def nvidia_without_devices(directory: Path) -> Path:
    """Write an nvidia-smi of a node whose driver finds no GPU."""
    return _write(directory, "echo 'No devices were found'\nexit 6\n")


def _write(directory: Path, text: str) -> Path:
    file = directory / "tools" / "nvidia-smi"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)
    return file.parent
