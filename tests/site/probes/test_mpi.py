"""MPI libraries and launchers, from the PATH and from modules."""

from __future__ import annotations

import pytest

from hidl_cli.site.probes import software
from tests.site.recording import DIRECTORY, RecordedHost, recorded

HYDRA = "HYDRA build details:\n    Version:                                 4.1.1\n"
OPEN_MPI = "mpirun (Open MPI) 5.0.3\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)\n"


def host(environment: dict[str, str] | None = None, **answers: str) -> RecordedHost:
    """A host with these programs in /opt/x/bin: ``mpiexec`` answers to --version, the others as they are asked."""
    commands = {"mpiname": "mpiname -a", "ompi_info": "ompi_info --version", "mpiexec": "mpiexec --version"}
    commands |= {
        "mpirun": "mpirun --version",
        "lmod": "lmod bash --terse avail",
        "modulecmd": "modulecmd bash avail --terse",
    }
    return RecordedHost(
        DIRECTORY / "none",
        environment=environment or {},
        programs={program: f"/opt/x/bin/{program}" for program in answers},
        answers={commands.get(program, program): answer for program, answer in answers.items()},
    )


@pytest.mark.parametrize(
    ("program", "said", "expected"),
    [
        ("mpichversion", "MPICH Version:      4.0.2\nMPICH Device: ch4:ucx\n", ("mpich", "4.0.2")),
        ("mpichversion", "MVAPICH2 Version:     \t2.3.7\n", ("mvapich2", "2.3.7")),
        ("mpichversion", "MVAPICH Version:     \t4.1\n", ("mvapich", "4.1")),
        ("mpichversion", "MVAPICH-Plus Version:\t4.1\n", ("mvapich-plus", "4.1")),
        ("mpichversion", "CRAY MPICH version:\t8.1.28 (ANL base 3.4a2)\n", ("cray-mpich", "8.1.28")),
        ("mpiname", "MVAPICH2 2.3.7 Wed March 02 22:00:00 EST 2022 ch3:mrail\n", ("mvapich2", "2.3.7")),
        ("mpiname", "MVAPICH2-GDR 2.3.7 Sun May 22 22:00:00 EST 2022 ch3:mrail\n", ("mvapich2-gdr", "2.3.7")),
        ("ompi_info", "Open MPI v4.1.4\n\nhttps://www.open-mpi.org/community/help/\n", ("openmpi", "4.1.4")),
        ("ompi_info", "Spectrum MPI v10.4.0.03rtm4\n", ("spectrum-mpi", "10.4.0.03rtm4")),
    ],
)
def test_a_library_on_the_path_says_what_it_is(program: str, said: str, expected: tuple[str, str]) -> None:
    (library,) = software.libraries(host(**{program: said}))

    assert (library.family, library.version, library.prefix) == (*expected, "/opt/x")


def test_cray_mpich_without_programs_is_known_by_its_modules_variables() -> None:
    variables = {"CRAY_MPICH_VERSION": "8.1.28", "CRAY_MPICH_DIR": "/opt/cray/pe/mpich/8.1.28/ofi/gnu/12.3"}
    (library,) = software.libraries(host(variables))

    assert (library.family, library.version, library.prefix) == ("cray-mpich", "8.1.28", variables["CRAY_MPICH_DIR"])


def test_intel_mpi_is_known_by_its_own_program() -> None:
    (library,) = software.libraries(host(impi_info="", mpiexec=INTEL))

    assert (library.family, library.version) == ("intel-mpi", "2021.9")


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (host(mpiexec=HYDRA, mpirun=HYDRA), ["mpiexec"]),
        (host(mpiexec=OPEN_MPI.replace("mpirun", "mpiexec"), mpirun=OPEN_MPI), ["mpirun"]),
        (host(mpiexec="mpiexec (OpenRTE) 4.1.4\n"), ["mpirun"]),
        (host(mpiexec=INTEL, mpirun=INTEL), ["mpiexec"]),
        (host(mpiexec=HYDRA, mpirun=OPEN_MPI), ["mpiexec", "mpirun"]),
        (host(mpirun_rsh="", ibrun="", jsrun="", srun=""), ["ibrun", "jsrun", "mpirun_rsh", "srun"]),
        (host(), []),
    ],
    ids=["Hydra", "Open MPI", "Open MPI 4", "Intel MPI", "both", "others", "none"],
)
def test_mpiexec_is_hydras_and_mpirun_is_open_mpis(here: RecordedHost, expected: list[str]) -> None:
    assert sorted(software.launchers(here)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mvapich2-gdr/2.3.7", ("mvapich2-gdr", "2.3.7")),
        ("openmpi/4.1.2(default)", ("openmpi", "4.1.2")),
        ("OpenMPI/4.1.4-GCC-11.3.0", ("openmpi", "4.1.4")),
        ("impi/21.9.0", ("intel-mpi", "21.9.0")),
        ("openmpi", ("openmpi", None)),
        ("openmpi/4.1.6--gcc--12.2.0-cuda-12.2(default) <L>", ("openmpi", "4.1.6")),
        ("openmpi/5.0.3 (L,D)", ("openmpi", "5.0.3")),
        ("openmpi/5.0.3(default:stable) <aL>", ("openmpi", "5.0.3")),
        ("hpcx-mpi/2.25.1", ("openmpi", None)),
        ("impi/2021.9.0-intel-compilers-2023.1.0", ("intel-mpi", "2021.9.0")),
        ("openmpi4/4.1.6", ("openmpi", "4.1.6")),
        ("mpi/openmpi-x86_64", ("openmpi", None)),
        ("mpi/mpich/4.2", ("mpich", "4.2")),
        ("openmpi-4.1.6-gcc-13.2.0-o3l7jxw", ("openmpi", "4.1.6")),
        ("openmpi/4.1.6-gcc-13.2.0-o3l7jxw", ("openmpi", "4.1.6")),
        ("gcc/13.2.0/mvapich2/2.3.7", ("mvapich2", "2.3.7")),
        ("mvapich/3.0", ("mvapich", "3.0")),
        ("cray-mpich/8.1.32", ("cray-mpich", "8.1.32")),
    ],
)
def test_a_module_of_an_mpi_library_is_one(line: str, expected: tuple[str, str | None]) -> None:
    (library,) = software.libraries(host({"LMOD_CMD": "/opt/lmod"}, lmod=f"/apps/modules:\ngcc/12\n{line}\n"))

    assert (library.family, library.version) == expected


@pytest.mark.parametrize(
    "line",
    [
        "boost/1.85.0--openmpi--4.1.6--gcc--12.2.0(default)",
        "osu-micro-benchmarks/7.4--openmpi--4.1.6",
        "boost/openmpi/1.85",
        "openmpi/",
        "openmpi/default(@)",
        "mpi4py/3.1.4",
        "openmpi-examples/1",
        "mpich/ü",
        "/opt/openmpi/4:",
        "$(openmpi)",
        "mpich/" + "9" * 200,
        "",
    ],
)
def test_other_modules_are_none(line: str) -> None:
    assert software.libraries(host({"LMOD_CMD": "/opt/lmod"}, lmod=f"{line}\n")) == ()


def test_marks_tell_the_default_and_the_loaded() -> None:
    lines = "openmpi/4.1.6 (D)\nopenmpi/5.0.3 <L>\nopenmpi/5.0.5\n"
    found = software.libraries(host({"LMOD_CMD": "/opt/lmod"}, lmod=lines))
    assert [library.source for library in found] == [
        "module openmpi/4.1.6 (default)",
        "module openmpi/5.0.3 (loaded)",
        "module openmpi/5.0.5",
    ]


def test_of_many_versions_the_last_are_reported() -> None:
    lines = "".join(f"openmpi/{number}.0\n" for number in range(100, 200))
    found = software.libraries(host({"MODULES_CMD": "/usr/bin/modulecmd"}, modulecmd=lines))

    assert [library.version for library in found] == [f"{number}.0" for number in range(188, 200)]


@pytest.mark.parametrize("system", ["hetero", "ampere"])
def test_the_recorded_modules_are_read(system: str) -> None:
    assert {library.family for library in software.libraries(recorded(system)) if library.modules} == {
        "hetero": {"intel-mpi", "mvapich2", "openmpi"},
        "ampere": {"mvapich2", "mvapich2-gdr", "openmpi"},
    }[system]
