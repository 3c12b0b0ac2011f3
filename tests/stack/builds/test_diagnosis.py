"""The first real error of a build's log."""

from __future__ import annotations

import pytest

from hidl_cli.stack.builds.build import first_error

LOGS = {
    "gcc": (
        "[ 10%] Building CXX object transport/tcp/error.cc.o\n"
        "/s/errors.h:27: warning: error: is only a word here\n"
        "/usr/bin/c++ -Werror=return-type -o error.cc.o -c error.cc\n"
        "/s/a.h:4:2: error: #error C++17 or later compatible compiler is required\n"
        "/s/b.cc:9:1: fatal error: x.h: No such file or directory\n"
        "make[2]: *** [a.make:76: a.o] Error 1\n",
        "/s/a.h:4:2: error: #error C++17 or later compatible compiler is required",
    ),
    "memory": (
        "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n",
        "c++: fatal error: Killed signal terminated program cc1plus",
    ),
    "cmake": (
        "-- Found MPI\nCMake Error at CMakeLists.txt:3 (find_package):\n\n  Could NOT find X\n\n-- Incomplete\n",
        "CMake Error at CMakeLists.txt:3 (find_package): Could NOT find X",
    ),
    "linker": (
        "/usr/bin/ld: cannot find -lmpi: No such file or directory\ncollect2: error: ld returned 1 exit status\n",
        "/usr/bin/ld: cannot find -lmpi: No such file or directory",
    ),
    "configure": ("checking for mpicc... no\nconfigure: error: no MPI compiler\n", "configure: error: no MPI compiler"),
    "python": (
        "Traceback (most recent call last):\n  File 'setup.py', line 1\nModuleNotFoundError: No module named 'torch'\n",
        "ModuleNotFoundError: No module named 'torch'",
    ),
}


@pytest.mark.parametrize("kind", LOGS)
def test_it_is_found(kind: str) -> None:
    log, error = LOGS[kind]
    assert first_error(log.splitlines()) == error


def test_a_good_log_has_none() -> None:
    assert first_error(["-- Looking for error.h - found", "0 errors", "[100%] Built target error"]) is None
