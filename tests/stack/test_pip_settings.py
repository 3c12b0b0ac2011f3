"""pip's settings as uv gets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.site.schema import Wheels
from hidl_cli.stack.pip_settings import Sources, environment, pip_variables, read, uv_flags, uv_variables

INDEX = "https://user:secret@pip.example/simple"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("hidl_cli.stack.pip_settings.sys.prefix", str(tmp_path / "venv"))
    return tmp_path


def configuration(home: Path, text: str, place: str = ".config/pip/pip.conf") -> Path:
    file = home / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def variables(environ: dict[str, str], wheels: Wheels | None = None) -> dict[str, str]:
    return uv_variables(read(wheels or Wheels(), environ), environ)


def test_the_environment_variables_of_pip_are_passed_on(home: Path) -> None:
    links = home / "wheels"
    links.mkdir()
    environ = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": INDEX,
        "PIP_EXTRA_INDEX_URL": "https://one.example/simple https://two.example/simple",
        "PIP_FIND_LINKS": f"{links} https://links.example/",
        "PIP_CERT": "/etc/cert.pem",
    }
    assert variables(environ) == {
        "UV_DEFAULT_INDEX": INDEX,
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_FIND_LINKS": f"{links.as_uri()},https://links.example/",
        "UV_INDEX_STRATEGY": "unsafe-first-match",
        "SSL_CERT_FILE": "/etc/cert.pem",
        "UV_LINK_MODE": "copy",
    }


def test_configuration_files_count_and_the_environment_comes_before_them(home: Path) -> None:
    configuration(home, "[global]\nindex-url = https://global.example\ncert = /a.pem\n[install]\ncert = /b.pem\n")
    named = configuration(home, "[global]\nindex-url = https://named.example\n", "named.conf")
    assert variables({})["UV_DEFAULT_INDEX"] == "https://global.example"
    assert variables({})["SSL_CERT_FILE"] == "/b.pem"
    assert variables({"PIP_CONFIG_FILE": str(named)})["UV_DEFAULT_INDEX"] == "https://named.example"
    environ = {"PIP_CONFIG_FILE": str(named), "PIP_INDEX_URL": "https://variable.example"}
    assert variables(environ)["UV_DEFAULT_INDEX"] == "https://variable.example"


def test_several_lines_of_a_configuration_file_are_several_values(home: Path) -> None:
    configuration(home, "[global]\nextra-index-url =\n    https://one.example\n    https://two.example\n")
    assert variables({})["UV_INDEX"] == "https://one.example https://two.example"


def test_a_configuration_file_that_is_none_is_passed_over(home: Path) -> None:
    configuration(home, "this is no configuration file")
    assert "UV_DEFAULT_INDEX" not in variables({})


def test_what_the_user_has_set_for_uv_stays(home: Path) -> None:
    environ = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": INDEX, "UV_INDEX_URL": "https://own.example"}
    given = environment(variables(environ), environ)
    assert "UV_DEFAULT_INDEX" not in given
    assert given["UV_INDEX_URL"] == "https://own.example"


def test_files_are_copied_unless_the_user_wants_links(home: Path) -> None:
    sources = read(Wheels(), {"PIP_CONFIG_FILE": "/dev/null"}, link="hardlink")
    assert uv_variables(sources, {}) == {"UV_LINK_MODE": "hardlink"}
    assert uv_variables(sources, {"UV_LINK_MODE": "symlink"}) == {}


def test_the_site_comes_before_pip(home: Path) -> None:
    wheels = Wheels(index_url="https://site.example", extra_index_urls=["https://more.example"])
    environ = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": INDEX, "PIP_EXTRA_INDEX_URL": "https://pip.example"}
    given = variables(environ, wheels)
    assert given["UV_DEFAULT_INDEX"] == "https://site.example"
    assert given["UV_INDEX"] == "https://more.example https://pip.example"


def test_a_directory_that_does_not_exist_is_left_out_and_reported(home: Path) -> None:
    sources = read(Wheels(find_links=[str(home / "gone")]), {"PIP_CONFIG_FILE": "/dev/null"})
    assert sources.absent == (str(home / "gone"),)
    assert uv_variables(sources, {}) == {"UV_LINK_MODE": "copy"}


def test_a_relative_directory_is_found_from_everywhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "a, b").mkdir()
    monkeypatch.chdir(home)
    given = uv_variables(read(Wheels(find_links=["a, b"]), {"PIP_CONFIG_FILE": "/dev/null"}), {})
    assert given["UV_FIND_LINKS"] == (home / "a, b").as_uri()
    assert "," not in given["UV_FIND_LINKS"]


def test_the_sources_of_a_stack_come_before_those_of_the_users_uv() -> None:
    sources = Sources(None, ("https://site/simple",), ("/house",), None, no_index=False, absent=())
    sources = sources.with_stack(["https://own/simple"], ["/built"])
    given = uv_variables(sources, {"UV_INDEX": "https://user/simple", "UV_FIND_LINKS": "/users"})
    assert given["UV_INDEX"] == "https://own/simple https://user/simple"
    assert given["UV_FIND_LINKS"] == "file:///built,/users"
    assert uv_variables(sources, {"UV_EXTRA_INDEX_URL": "https://user/simple"})["UV_INDEX"] == "https://own/simple"
    given = uv_variables(sources, {})
    assert given["UV_INDEX"] == "https://own/simple https://site/simple"
    assert given["UV_FIND_LINKS"] == "file:///built,file:///house"


def test_no_index_is_passed_on(home: Path) -> None:
    environ = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1"}
    assert uv_flags(read(Wheels(), environ), environ) == ["--no-index"]
    assert uv_flags(read(Wheels(), environ), environ | {"UV_DEFAULT_INDEX": "https://own.example"}) == []


def test_another_environment_does_not_leak_into_uv(home: Path) -> None:
    given = environment({}, {"VIRTUAL_ENV": "/v", "PYTHONPATH": "/p", "UV_CACHE_DIR": "cache", "PATH": "/bin"})
    assert given == {
        "PATH": "/bin",
        "UV_CACHE_DIR": str(Path("cache").absolute()),
        "UV_PYTHON_DOWNLOADS": "never",
        "NO_COLOR": "1",
    }


def test_pip_is_reported_what_uv_is_reported() -> None:
    sources = Sources("https://a/simple", ("https://b/simple",), ("/house",), "/ca.pem", no_index=False, absent=())
    assert pip_variables(sources, {}) == {
        "PIP_INDEX_URL": "https://a/simple",
        "PIP_EXTRA_INDEX_URL": "https://b/simple",
        "PIP_FIND_LINKS": "file:///house",
        "PIP_CERT": "/ca.pem",
    }
    assert pip_variables(sources, {"UV_DEFAULT_INDEX": "https://u/simple"})["PIP_INDEX_URL"] == "https://u/simple"
