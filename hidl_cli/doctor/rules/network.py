"""Proxies in the environment of the ranks, and the hosts that bypass them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.doctor.examine import plan_job
from hidl_cli.quoting import sh
from hidl_workloads.doctor.finding import Evidence, Rules

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True)
class Network:
    """``proxies``: variables of the ranks, with the proxy's host only: no user name or password. ``caught``: names of
    this host that no_proxy does not exclude. ``left_out``: the value of no_proxy."""

    proxies: Mapping[str, str]
    caught: tuple[str, ...] = ()
    left_out: str = ""


def probe(context: Context) -> Network:
    """From the environment of the ranks; lower case takes precedence over upper case."""
    environment = plan_job(context).environment
    proxies = {
        name: _host(environment[name])
        for small in _PROXIES
        for name in (small, small.upper())
        if environment.get(name, "").strip()
    }
    left_out = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    own = ("localhost", "127.0.0.1", context.host.hostname)
    return Network(proxies, tuple(name for name in own if proxies and not is_left_out(name, left_out)), left_out)


def is_left_out(host: str, no_proxy: str) -> bool:
    """Whether no_proxy excludes ``host``, as urllib, curl and gRPC read it: ``*``, the host, or a domain of it."""
    words = [word.strip().lstrip(".").lower() for word in no_proxy.split(",") if word.strip()]
    return no_proxy.strip() == "*" or any(host.lower() == word or host.lower().endswith(f".{word}") for word in words)


def _host(proxy: str) -> str:
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return parts.hostname or "a proxy"


RULES: Rules[Network] = Rules()


@RULES.rule(
    "HD062",
    "Proxy variables affect connections to this host",
    severity="warning",
    why="gRPC (TensorFlow), HTTP rendezvous (Horovod's gloo, torchrun) and dashboards connect to the proxy although "
    "the other side is on this host or next to it; the proxy refuses, or they time out.",
)
def caught(facts: Network) -> Iterator[Evidence]:
    """A proxy is set, and no_proxy does not exclude localhost or the name of this host."""
    if facts.caught:
        names = ", ".join(f"{name} ({host})" for name, host in facts.proxies.items())
        wanted = ",".join(word for word in (facts.left_out.strip(), *facts.caught) if word)
        yield Evidence(
            f"{names} is used for {', '.join(facts.caught)} too: not in no_proxy",
            f"export no_proxy={sh(wanted)} NO_PROXY={sh(wanted)}",
        )


SUBJECT = Subject(probe, RULES, before_runs=True)
