"""Registry of build kinds, one module each; see ``builds.contract``."""

from __future__ import annotations

from collections.abc import Mapping

from hidl_cli.stack.builds.contract import BuildKind
from hidl_cli.stack.builds.kinds import autotools, wheel

KINDS: Mapping[str, BuildKind] = {"autotools": autotools.KIND, "wheel": wheel.KIND}
