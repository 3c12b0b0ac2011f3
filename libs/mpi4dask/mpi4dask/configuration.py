"""The settings below `distributed.comm.mpi`, read once per engine and validated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.config
import yaml
from dask.utils import parse_bytes, parse_timedelta

from mpi4dask.errors import ConfigurationError

PREFIX = "distributed.comm.mpi"


@dataclass(frozen=True)
class Settings:
    """Validated settings: times in seconds, sizes in bytes."""

    spin: float | None  # None: choose by the number of free cores
    spin_time: float
    eager_size: int
    eager_slots: int
    chunk_size: int
    backlog: int
    buffer_pool: int
    use_direct: bool
    handshake_timeout: float
    token_file: str | None
    use_mpi: bool
    use_cuda: bool


def add_defaults() -> None:
    """Add the packaged mpi.yaml to Dask's defaults; user configuration takes precedence."""
    with (Path(__file__).parent / "mpi.yaml").open() as file:
        dask.config.update_defaults(yaml.safe_load(file))


def load() -> Settings:
    """Read the settings from Dask's configuration; raise ConfigurationError if one is invalid."""
    spin = _get("spin")
    return Settings(
        spin=None if spin == "auto" else _time("spin"),
        spin_time=_time("spin-time"),
        eager_size=_size("eager-size", least=4096),
        eager_slots=_count("eager-slots", least=2),
        chunk_size=_size("chunk-size", least=4096, most=2**31 - 1),
        backlog=_size("backlog", least=0),
        buffer_pool=_size("buffer-pool", least=0),
        use_direct=_choice("direct", ("auto", "off")) == "auto",
        handshake_timeout=_time("handshake-timeout"),
        token_file=_get("token-file"),
        use_mpi=_choice("data", ("auto", "socket")) == "auto",
        use_cuda=_choice("cuda", ("auto", "off")) == "auto",
    )


def _get(name: str) -> Any:
    return dask.config.get(f"{PREFIX}.{name}")


def _fail(name: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{PREFIX}.{name} is {_get(name)!r}; expected {wanted}")


def _time(name: str) -> float:
    try:
        seconds = float(parse_timedelta(_get(name), default="seconds"))
    except (ValueError, TypeError, KeyError):
        raise _fail(name, "a time such as 200us or 10s") from None
    if seconds < 0:
        raise _fail(name, "a time of at least 0")
    return seconds


def _size(name: str, least: int, most: int | None = None) -> int:
    try:
        size = int(parse_bytes(_get(name)))
    except (ValueError, TypeError):
        raise _fail(name, "a size such as 128KiB") from None
    if size < least or (most is not None and size > most):
        raise _fail(name, f"{least} to {most} bytes" if most else f"at least {least} bytes")
    return size


def _count(name: str, least: int) -> int:
    value = _get(name)
    if not isinstance(value, int) or value < least:
        raise _fail(name, f"a whole number from {least}")
    return value


def _choice(name: str, choices: tuple[str, ...]) -> str:
    value = _get(name)
    if value is False:  # YAML 1.1 reads a bare off as false
        value = "off"
    if value not in choices:
        raise _fail(name, " or ".join(choices))
    return str(value)
