"""Where TensorFlow keeps what hyparflow sums: in the host's memory, or elsewhere."""

from __future__ import annotations

import pytest
from hyparflow.backends.tensorflow.memory import is_host

PLACE = "/job:localhost/replica:0/task:0"


@pytest.mark.parametrize("device", [f"{PLACE}/device:CPU:0", "/device:CPU:0", "/cpu:0"])
def test_the_processors_tensors_are_in_the_hosts_memory(device: str) -> None:
    assert is_host(device)


@pytest.mark.parametrize("device", [f"{PLACE}/device:GPU:0", f"{PLACE}/device:CPU:1", ""])
def test_another_devices_tensors_are_not(device: str) -> None:
    assert not is_host(device)
