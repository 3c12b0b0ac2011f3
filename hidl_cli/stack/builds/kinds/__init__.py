"""The kinds of builds, one module each; ``builds.contract`` says what a kind does."""

from __future__ import annotations

from collections.abc import Mapping

from hidl_cli.stack.builds.contract import Kind
from hidl_cli.stack.builds.kinds import autotools, wheel

KINDS: Mapping[str, Kind] = {"autotools": autotools.KIND, "wheel": wheel.KIND}
