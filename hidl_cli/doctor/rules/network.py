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
    """The proxies of the ranks.

    Attributes:
        proxies: Proxy host by variable, without the user name and password.
        affected: Names of this host that are not excluded by no_proxy.
        no_proxy: Value of no_proxy.
    """

    proxies: Mapping[str, str]
    affected: tuple[str, ...] = ()
    no_proxy: str = ""


def probe(context: Context) -> Network:
    """Read the environment of the ranks, in which lower-case variables take precedence over upper-case ones."""
    environment = plan_job(context).environment
    proxies = {
        name: _host(environment[name])
        for lower in _PROXIES
        for name in (lower, lower.upper())
        if environment.get(name, "").strip()
    }
    no_proxy = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    own = ("localhost", "127.0.0.1", context.host.hostname)
    return Network(proxies, tuple(name for name in own if proxies and not is_excluded(name, no_proxy)), no_proxy)


def is_excluded(host: str, no_proxy: str) -> bool:
    """Return whether no_proxy excludes ``host``: with ``*``, the host or one of its domains, as in urllib and curl."""
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
    "their peer is this host or a neighbour. The proxy rejects the connections, or they time out.",
)
def affected_by_proxy(facts: Network) -> Iterator[Evidence]:
    """Report a warning if a proxy is set and no_proxy does not exclude localhost or the name of this host."""
    if facts.affected:
        names = ", ".join(f"{name} ({host})" for name, host in facts.proxies.items())
        value = sh(",".join(word for word in (facts.no_proxy.strip(), *facts.affected) if word))
        yield Evidence(
            f"{names} also applies to {', '.join(facts.affected)}, which no_proxy does not exclude",
            f"export no_proxy={value} NO_PROXY={value}",
        )


SUBJECT = Subject(probe, RULES, before_runs=True)
