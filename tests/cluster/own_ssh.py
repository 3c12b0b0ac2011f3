"""A user whose own ssh reaches the nodes of the test cluster, as machines without a queue are reached."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.cluster import LivingCluster
from tests.conftest import Hidl


def with_own_ssh(hidl: Hidl, cluster: LivingCluster, directory: Path) -> Hidl:
    """Return hidl with an ``ssh`` on PATH that knows the nodes; it lies in ``directory``."""
    ssh = directory / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {cluster.ssh_config} "$@"\n')
    ssh.chmod(0o755)
    return Hidl(hidl.environment | {"PATH": f"{ssh.parent}:{os.environ['PATH']}"})
