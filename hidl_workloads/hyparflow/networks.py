"""A site's network in numbers, from the words in which its file describes it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyparflow.simulate import Network

#: Signalling rates by name in Gb/s, for a port with four lanes; a longer name precedes the name that it begins with.
_RATES = {
    "xdr400": 400, "xdr": 800, "ndr200": 200, "ndr": 400, "hdr100": 100, "hdr": 200, "edr": 100, "fdr": 56,
    "omni-path": 100, "slingshot": 200,
}  # fmt: skip
_SHARE = 0.97  # fraction of the signalling rate that large messages reach on such networks


def network_of(words: str | None) -> tuple[Network, str]:
    """Return the network and a description of it. One rail is counted, the first rate that the words name.

    Where they name none, it is InfiniBand HDR100.
    """
    from hyparflow.simulate import NETWORKS

    text = (words or "").lower()
    named = re.search(r"(\d+) gb/s", text)
    rate = int(named[1]) if named else next((rate for name, rate in _RATES.items() if name in text), None)
    if rate is None or "virtual" in text:
        said = f"the site file contains {words!r}" if words else "the site file contains no network"
        return NETWORKS["infiniband-hdr100"], f"InfiniBand HDR100, because {said}, which specifies no rate"
    kind = "omni-path" if "omni-path" in text else "infiniband-hdr100"
    found = replace(NETWORKS[kind], bandwidth=rate * 1e9 / 8 * _SHARE)
    return found, f"{words}: {found.bandwidth / 1e9:.1f} GB/s and {found.latency * 1e6:.1f} us on one rail"
