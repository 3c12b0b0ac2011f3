"""Write and read the ``# ssh:`` lines of a job script, which name its hosts in the form of ``hidl run`` options."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.hosts import is_host_name
from hidl_cli.launch.placement import Allocation
from hidl_cli.site.schema import Policies

_LINE = re.compile(r"^# ssh: --(hosts|time|share-hosts|run)(?:=(.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class HostsRequest:
    """The hosts that a job script requests.

    Attributes:
        seconds: Time limit, or None if there is none.
        shared: True if the job does not lock the hosts.
        run: Id of the run whose job script is started, or None if this is itself the job script of a run.
    """

    hosts: tuple[str, ...]
    seconds: float | None
    shared: bool
    run: str | None = None


def header(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """Return the lines that request ``allocation``. Raises ``InvalidInput`` for options that require a batch system."""
    for what in ("account", "qos", "constraint", "reservation"):
        value = getattr(allocation, what)
        if value is not None:
            raise InvalidInput(
                f"hosts without a scheduler have no {what}, but {value!r} is requested", hint=f"omit --{what}"
            )
    limit = allocation.time_limit
    lines = [
        f"--hosts={','.join(allocation.hosts)}",
        *([] if limit is None else [f"--time={math.ceil(limit)}"]),
        *(["--share-hosts"] if allocation.share_hosts else []),
    ]
    return tuple(f"# ssh: {line}" for line in lines)


def started_run(run: str) -> str:
    """Return the header line of a script that starts the job script of a run in another directory."""
    return f"# ssh: --run={run}"


def read_request(script: str) -> HostsRequest:
    """Parse the header of a job script. Raises ``InvalidInput`` if a line is invalid or the hosts are missing."""
    given: dict[str, str] = {}
    for name, value in _LINE.findall(script):
        given.setdefault(name, value)
    hosts = tuple(given.get("hosts", "").split(","))
    time = given.get("time")
    if not all(map(is_host_name, hosts)) or (time is not None and not time.isdecimal()):
        raise InvalidInput("the job script names no valid hosts", hint="add a line `# ssh: --hosts=HOST,HOST`")
    return HostsRequest(hosts, None if time is None else float(time), "share-hosts" in given, given.get("run"))
