"""Compilers on the PATH: versions, the programs that belong together, and the one that an MPI's wrapper calls."""

from __future__ import annotations

import pytest

from hidl_cli.site.probes import software
from tests.site.recording import DIRECTORY, RecordedHost

OPTIONS = ("-dumpfullversion -dumpversion", "--version", "-show")


def host(**answers: str) -> RecordedHost:
    """A host with these programs in /opt/x/bin; ``pp`` in a name stands for ``++``."""
    named = {program.replace("pp", "++"): said for program, said in answers.items()}
    return RecordedHost(
        DIRECTORY / "none",
        programs={program: f"/opt/x/bin/{program}" for program in named},
        answers={f"{program} {option}": said for program, said in named.items() for option in OPTIONS},
    )


@pytest.mark.parametrize(
    ("package", "c", "cxx", "said", "version"),
    [
        ("gcc", "gcc", "gpp", "9.1.0\n", "9.1.0"),
        ("llvm", "clang", "clangpp", "clang version 17.0.6 (Red Hat 17.0.6-5.el9)\n", "17.0.6"),
        ("aocc", "clang", "clangpp", "AMD clang version 16.0.3 (CLANG: AOCC_4.1.0-Build#270 2023_07_10)\n", "4.1.0"),
        ("nvhpc", "nvc", "nvcpp", "\nnvc 24.5-1 64-bit target on aarch64 Linux -tp neoverse-v2\n", "24.5"),
        ("intel-oneapi-compilers", "icx", "icpx", "Intel(R) oneAPI DPC++/C++ Compiler 2023.1.0 (2023.1)\n", "2023.1.0"),
        ("cce", "craycc", "crayCC", "Cray clang version 15.0.1  (0eb79ea)\n", "15.0.1"),
    ],
)
def test_a_compiler_says_its_version(package: str, c: str, cxx: str, said: str, version: str) -> None:
    found = software.find(host(**{c: said, cxx: said}), package, software.PROGRAMS[package])
    assert found is not None
    assert (found.version, found.prefix, found.fortran) == (version, "/opt/x", None)


def test_a_fortran_of_another_version_is_not_counted() -> None:
    names = software.PROGRAMS["gcc"]
    same = software.find(host(gcc="9.1.0", gpp="9.1.0", gfortran="9.1.0"), "gcc", names)
    other = software.find(host(gcc="9.1.0", gpp="9.1.0", gfortran="12.2.0"), "gcc", names)
    assert same is not None
    assert other is not None
    assert (same.fortran, other.fortran) == ("gfortran", None)


@pytest.mark.parametrize("answers", [{"gcc": "9.1.0"}, {"gcc": "9.1.0", "gpp": "8.3.0"}, {"gcc": "", "gpp": ""}, {}])
def test_c_and_cxx_of_one_version_make_a_compiler(answers: dict[str, str]) -> None:
    assert software.find(host(**answers), "gcc", software.PROGRAMS["gcc"]) is None


@pytest.mark.parametrize(
    ("shown", "package"),
    [
        ("/opt/intel/bin/icx -I/opt/x/include", "intel-oneapi-compilers"),
        ("cc -I/opt/x/include", "gcc"),
        ("clang -lmpi", "llvm"),
        ("gcc 'unclosed", "gcc"),
        ("", "gcc"),
    ],
)
def test_the_compiler_of_an_mpi_is_the_one_that_its_wrapper_calls(shown: str, package: str) -> None:
    programs = {"gcc": "9.1.0", "gpp": "9.1.0", "icx": "2023.1.0", "icpx": "2023.1.0", "mpicc": shown}
    found = software.of_wrapper(host(**programs, clang="17.0.6", clangpp="17.0.6"))
    assert found is not None
    assert found.package == package
