"""jsrun's command line, in the forms that its documentation and users' scripts have."""

from __future__ import annotations

import pytest
from hidl_twin.jsrun.options import ALL, parse


@pytest.mark.parametrize("form", [["-n", "12"], ["-n12"], ["--nrs", "12"], ["--nrs=12"]])
def test_a_value_stands_behind_its_option_or_is_part_of_it(form: list[str]) -> None:
    assert parse([*form, "./a.out"]).nrs == 12


def test_what_is_not_said_has_the_defaults_of_olcf() -> None:
    options = parse(["./a.out"])
    assert (options.nrs, options.cpu_per_rs, options.gpu_per_rs, options.bind, options.bind_cores) == (
        None,
        1,
        0,
        "packed",
        1,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", ("none", 1)),
        ("rs", ("rs", 1)),
        ("packed:7", ("packed", 7)),
        ("packed:smt:4", ("packed", 4)),
        ("proportional-packed:2", ("proportional-packed", 2)),
    ],
)
def test_bindings(text: str, expected: tuple[str, int]) -> None:
    options = parse([f"-b{text}", "./a.out"])
    assert (options.bind, options.bind_cores) == expected


@pytest.mark.parametrize(("text", "expected"), [("cyclic", ("cyclic", 1)), ("plane:3", ("plane", 3))])
def test_distributions(text: str, expected: tuple[str, int]) -> None:
    options = parse(["-d", text, "./a.out"])
    assert (options.distribution, options.plane) == expected


def test_the_programs_own_options_are_the_programs() -> None:
    assert parse(["-n1", "./a.out", "-n", "7", "--bind=none"]).program == ("./a.out", "-n", "7", "--bind=none")


def test_an_argument_of_spectrum_mpi_may_begin_with_a_hyphen() -> None:
    assert [parse([*form, "x"]).smpiargs for form in (["--smpiargs=-gpu"], ["-M", "-gpu"])] == ["-gpu", "-gpu"]


def test_environment_options_add_up() -> None:
    options = parse(["-EA=1", "-E", "B", "-D", "HOME", "-F", "C=$A", "./a.out"])
    assert (options.set, options.kept_back, options.evaluated) == (("A=1", "B"), ("HOME",), ("C=$A",))


def test_all_hosts_and_all_cpus() -> None:
    options = parse(["-nALL_HOSTS", "-cALL_CPUS", "-gALL_GPUS", "./a.out"])
    assert (options.nrs, options.cpu_per_rs, options.gpu_per_rs) == (ALL, ALL, ALL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense", "x"], "option --nonsense not recognized"),
        (["-n"], "option -n requires argument"),
        (["-n0", "./a.out"], "invalid argument of --nrs: '0'"),
        (["-bsocket", "./a.out"], "invalid argument of --bind: 'socket'"),
        (["-dblock", "./a.out"], "invalid argument of --launch_distribution: 'block'"),
        (["-n1"], "no command was given"),
        (["--erf_input=erf", "./a.out"], "--erf_input is not supported by this stand-in"),
        (["-S", "file", "./a.out"], "--save_resources is not supported by this stand-in"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        parse(arguments)
    assert words in capsys.readouterr().err
