"""Providers, which install stacks; their interface is defined in ``contract``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.site.schema import PROVIDERS, ProviderName, Site

if TYPE_CHECKING:
    from hidl_cli.stack.providers.contract import Provider


def provider_for(site: Site, name: ProviderName | None = None, mirror: Path | None = None) -> Provider:
    """Return a provider by name (default: the site's provider).

    ``mirror`` is a directory created by ``hidl stack fetch``.

    Raises ``MissingPrecondition`` if the provider is a plug-in that cannot be loaded.
    """
    provider: Provider = PROVIDERS.get(name or site.install.provider)(site, mirror)
    return provider
