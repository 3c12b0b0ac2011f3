"""The table of MPI families: every family is told from every other by what its programs and modules say."""

from __future__ import annotations

import pytest

from hidl_cli.mpi import ABI_TITLES, FAMILIES, SONAMES, TELLERS, TRAITS, Family, Query, abi_of, family_of_module, tell

LINES = [(family, program) for family, traits in TRAITS.items() for program in traits.told_by]


def test_every_family_has_traits() -> None:
    assert tuple(TRAITS) == FAMILIES
    assert {traits.abi for traits in TRAITS.values()} == set(ABI_TITLES) == set(SONAMES.values())


@pytest.mark.parametrize(("family", "program"), LINES)
def test_a_stand_ins_line_tells_family_and_version(family: Family, program: str) -> None:
    traits = TRAITS[family]
    line = TELLERS[program].line.format(printed=traits.printed, version=traits.last_version or "5.0.2")
    assert tell(program, f"{line}\nand more\n") == (family, traits.last_version or "5.0.2")


@pytest.mark.parametrize(
    ("program", "text", "expected"),
    [
        ("mpiname", "MVAPICH2-X 2.3 Wed Oct 31 22:00:00 EDT 2018 ch3:mrail", ("mvapich2", "2.3")),
        ("mpiname", "MVAPICH2-GDR 2.3.7 Sun May 22 22:00:00 EST 2022 ch3:mrail", ("mvapich2-gdr", "2.3.7")),
        ("mpiname", "MVAPICH 3.0b Fri April 10 22:00:00 EST 2023 ch4:ofi", ("mvapich", "3.0b")),
        ("mpichversion", "MVAPICH-Plus Version:\t4.1\n", ("mvapich-plus", "4.1")),
        ("mpichversion", "CRAY MPICH version:\t8.1.28 (ANL base 3.4a2)\n", ("cray-mpich", "8.1.28")),
        ("ompi_info", "Spectrum MPI v10.4.0.03rtm4\n", ("spectrum-mpi", "10.4.0.03rtm4")),
        ("impi_info", "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 1", ("intel-mpi", "2021.9")),
        ("mpichversion", "ParaStation MPI\n", None),
        ("mpiname", "", None),
    ],
)
def test_what_the_real_programs_print_is_read(program: str, text: str, expected: tuple[str, str] | None) -> None:
    assert tell(program, text) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_its_modules_are_no_others(family: Family) -> None:
    for word in TRAITS[family].modules:
        assert family_of_module(f"{word.upper()}/1.0") == family


def test_packages_and_rpms_belong_to_one_family_each() -> None:
    packages = [traits.spack for traits in TRAITS.values()]
    rpms = [name for traits in TRAITS.values() for name in traits.rpms]
    assert len(set(packages)) == len(packages)
    assert len(set(rpms)) == len(rpms)


def test_a_library_that_is_asked_about_gpus_brings_the_program() -> None:
    asked = {
        family: traits.gpu_aware.argv[0] for family, traits in TRAITS.items() if isinstance(traits.gpu_aware, Query)
    }
    assert all(program in TRAITS[family].told_by for family, program in asked.items())


@pytest.mark.parametrize(
    ("soname", "abi"),
    [
        ("libmpi.so.12", "mpich"),
        ("libmpifort.so.12", "mpich"),
        ("libmpich.so.12", "mpich"),
        ("libmpichfort.so.12", "mpich"),
        ("libmpi_gnu_112.so.12", "mpich"),
        ("libmpi.so.40", "openmpi"),
        ("libmpi_mpifh.so.40", "openmpi"),
        ("libmpi_usempi_ignore_tkr-gfortran.so.40", "openmpi"),
        ("libmpi.so", None),
        ("libmpiprofile.so.1", None),
        ("libmpdec.so.3", None),
        ("libcompi.so.12", None),
    ],
)
def test_the_abi_of_a_library_is_told_by_its_soname(soname: str, abi: str | None) -> None:
    assert abi_of(soname) == abi
