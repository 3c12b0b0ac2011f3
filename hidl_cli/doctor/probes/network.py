"""Proxies: which variables name one, and which hosts they leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes import job

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True)
class Network:
    """``proxies``: the variables that the ranks get, each with the proxy's host alone: no name or password of its
    user. ``caught``: the names of this very host that they do not leave out. ``left_out``: what no_proxy says."""

    proxies: Mapping[str, str]
    caught: tuple[str, ...] = ()
    left_out: str = ""


def probe(context: Context) -> Network:
    """By the environment of the ranks; a variable in small letters comes before that in capitals."""
    environment = job.probe(context).environment
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
    """As Python's urllib, curl and gRPC take it: ``*``, or one of the words is the host or a domain that it is in."""
    words = [word.strip().lstrip(".").lower() for word in no_proxy.split(",") if word.strip()]
    return no_proxy.strip() == "*" or any(host.lower() == word or host.lower().endswith(f".{word}") for word in words)


def _host(proxy: str) -> str:
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return parts.hostname or "a proxy"
