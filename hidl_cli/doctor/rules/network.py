"""Rules: what stands between ranks of one host."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.network import Network, probe
from hidl_cli.quoting import sh
from hidl_workloads.doctor.finding import Finding, Rules, Seen

RULES: Rules[Network] = Rules()


def examine(context: Context) -> list[Finding]:
    """What is wrong with the way to this very host."""
    return RULES.findings(probe(context))


@RULES.rule(
    "HD062",
    "Proxy variables catch connections to this host",
    severity="warning",
    why="gRPC (TensorFlow), HTTP rendezvous (Horovod's gloo, torchrun) and dashboards go to the proxy although the "
    "other side is on this host or beside it; the proxy refuses, or they wait for their time-out.",
)
def caught(facts: Network) -> Iterator[Seen]:
    """A proxy is named, and no_proxy leaves out neither localhost nor the host's own name."""
    if facts.caught:
        names = ", ".join(f"{name} ({host})" for name, host in facts.proxies.items())
        wanted = ",".join(word for word in (facts.left_out.strip(), *facts.caught) if word)
        yield Seen(
            f"{names} is used for {', '.join(facts.caught)} too, as no_proxy does not name them",
            f"export no_proxy={sh(wanted)} NO_PROXY={sh(wanted)}",
        )
