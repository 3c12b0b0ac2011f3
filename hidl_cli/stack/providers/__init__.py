"""How a stack is installed; ``contract`` says what a provider does, and each has a module or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.site.schema import PROVIDERS

if TYPE_CHECKING:
    from hidl_cli.site.schema import ProviderName, Site
    from hidl_cli.stack.providers.contract import Provider


def provider_for(site: Site, name: ProviderName | None = None, mirror: Path | None = None) -> Provider:
    """Return the provider of that name; None: the one that the site names. ``mirror``: what was brought along.

    Raises ``MissingPrecondition`` if it is a plug-in that cannot be loaded.
    """
    made: Provider = PROVIDERS.get(name or site.install.provider)(site, mirror)
    return made
