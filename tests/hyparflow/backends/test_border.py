"""Where hyparflow's sums are: in the host's memory, or nowhere."""

from __future__ import annotations

import pytest
from hyparflow.backends.tensorflow.border import require_host
from hyparflow.errors import RequestError


def test_sums_in_a_gpus_memory_are_refused_with_what_to_do() -> None:
    with pytest.raises(RequestError, match=r"TensorFlow computes on GPU:0, .* CUDA_VISIBLE_DEVICES= or tf\.config"):
        require_host("/job:localhost/replica:0/task:0/device:GPU:0")


@pytest.mark.parametrize("device", ["/job:localhost/replica:0/task:0/device:CPU:0", "/device:CPU:0", "/cpu:0"])
def test_sums_in_the_hosts_memory_are_taken(device: str) -> None:
    require_host(device)
