"""Check the hosts of a run before anything is started on them."""

from __future__ import annotations

import os
import platform
import re
import secrets
import socket
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from hidl_cli.documents import write_text
from hidl_cli.errors import MissingPrecondition
from hidl_cli.record.run import Run
from hidl_cli.schedulers.ssh.guards import LOCK, Guards, Needs, Trouble, troubles_of

_TOKEN = ".token"


class UnusableHosts(MissingPrecondition):
    """Some hosts of a run cannot be used; ``troubles`` lists the reasons in the order of the hosts."""

    def __init__(self, hosts: tuple[str, ...], troubles: list[Trouble]) -> None:
        order = {host: place for place, host in enumerate(hosts)}
        self.troubles = tuple(sorted(troubles, key=lambda each: order[each.host]))
        super().__init__(_message(len(hosts), self.troubles), hint=_hint(self.troubles))


def needs_of(run: Run, *, shared: bool) -> Needs:
    """Return a run's requirements for its hosts, and write a new token to its directory.

    ``shared`` hosts are not locked.
    """
    prefix = (run.document("plan") or {}).get("prefix") or ""
    manifest = Path(prefix, "manifest.json")
    token = secrets.token_hex(8)
    write_text(run.directory / _TOKEN, f"{token}\n")
    return Needs(
        prefix=prefix,
        manifest=sha256(manifest.read_bytes()).hexdigest() if prefix and manifest.is_file() else "",
        directory=os.path.realpath(run.directory),
        token=token,
        lock="" if shared else LOCK,
    )


def check_hosts(hosts: tuple[str, ...], run: Run, *, shared: bool) -> None:
    """Connect to all hosts, and raise ``UnusableHosts`` if the run cannot use one. Nothing is left on the hosts."""
    needs = needs_of(run, shared=shared)
    try:
        with socket.create_server(("", 0), backlog=len(hosts) + 16) as back:
            needs = replace(needs, origin=socket.gethostname(), port=str(back.getsockname()[1]))
            with Guards(hosts, run.id, needs) as guards:
                troubles = guards.look()
                for guard in guards.all:
                    if "looked" in guard.messages:
                        troubles += troubles_of(guard, needs, platform.machine())
    except FileNotFoundError as error:
        raise MissingPrecondition("ssh not found on this machine", hint="install OpenSSH's client") from error
    if troubles:
        raise UnusableHosts(hosts, troubles)


def _message(hosts: int, troubles: tuple[Trouble, ...]) -> str:
    lines = [f"  {each.host}: {each.what}" for each in troubles]
    count = len({each.host for each in troubles})
    return "\n".join([f"{count} of {hosts} host(s) cannot be used; nothing was started:", *lines])


def _hint(troubles: tuple[Trouble, ...]) -> str:
    """Return one fix for each kind of problem, for the first host that has it."""
    fixes: dict[str, str] = {}
    for each in troubles:
        fixes.setdefault(re.sub(re.escape(each.host), "", each.fix), each.fix.replace("{host}", each.host))
    return "\n      ".join(fixes.values())
