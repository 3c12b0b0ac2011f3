"""The names of the interface, each imported when it is asked for."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

from hidl_cli import api


def test_no_module_hides_a_name() -> None:
    assert {module.name for module in pkgutil.iter_modules(api.__path__)}.isdisjoint(api.__all__)


@pytest.mark.parametrize("name", api.__all__)
def test_every_name_is_there(name: str) -> None:
    modules = [import_module(f"{api.__name__}.{module.name}") for module in pkgutil.iter_modules(api.__path__)]
    assert getattr(api, name) not in modules
    assert getattr(api, name).__name__ == name


def test_the_listing_and_the_star_import_have_them_all() -> None:
    program = (
        "from hidl_cli.api import *; import hidl_cli.api as api; print(set(api.__all__) <= set(dir()) & set(dir(api)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'rn'"):
        getattr(api, "rn")  # noqa: B009 (mypy knows that it is not there)
