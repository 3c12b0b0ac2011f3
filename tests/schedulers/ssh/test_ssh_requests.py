"""The lines of a job script that name its hosts."""

from __future__ import annotations

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.placement import Allocation
from hidl_cli.schedulers.ssh import HostsRequest, read_request, request_lines, started_run
from hidl_cli.site.schema import Policies


def test_what_is_written_is_read() -> None:
    allocation = Allocation("hidl", 2, 1, hosts=("gpu11", "gpu12"), time_limit=90.5, share_hosts=True)
    lines = request_lines(allocation, Policies())
    assert lines == ("# ssh: --hosts=gpu11,gpu12", "# ssh: --time=91", "# ssh: --share-hosts")
    assert read_request("\n".join(lines)) == HostsRequest(("gpu11", "gpu12"), 91.0, True)


def test_a_script_can_start_that_of_a_run_in_another_directory() -> None:
    lines = (
        *request_lines(Allocation("hidl", 1, 1, hosts=("gpu11",)), Policies()),
        started_run("20261123-120000-x-1a2b"),
    )
    assert read_request("\n".join(lines)).run == "20261123-120000-x-1a2b"


@pytest.mark.parametrize("option", ["account", "qos", "constraint", "reservation"])
def test_what_only_a_queue_has_is_refused(option: str) -> None:
    allocation = Allocation("hidl", 1, 1, hosts=("gpu11",), **{option: "x"})
    with pytest.raises(InvalidInput, match="hosts without a scheduler have no"):
        request_lines(allocation, Policies())


@pytest.mark.parametrize("script", ["", "# ssh: --hosts=", "# ssh: --hosts=-oProxyCommand=id", "# ssh: --hosts=a;id"])
def test_a_script_without_valid_hosts_is_refused(script: str) -> None:
    with pytest.raises(InvalidInput, match="contains no valid hosts"):
        read_request(script)
