"""No secret is shown: of URLs, commands, environments and headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.redaction import redact, redact_document, redact_variable
from tests.plan import golden_scripts


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://user:secret@pip.example/simple", "https://***@pip.example/simple"),
        ("https://token@host/a http://u:p@h/b", "https://***@host/a http://***@h/b"),
        ("https://u:p@ss@w@host/simple", "https://***@host/simple"),
        ("https://u:p/w@host/simple", "https://***@host/simple"),
        ("https://u:p/w@x?y@host/simple", "https://***@host/simple"),
        ("https://host/a?token=x&user=y#sha256=z", "https://host/a?token=***&user=***#sha256=z"),
        ("curl -H 'Authorization: Bearer abc' https://host", "curl -H 'Authorization: Bearer ***' https://host"),
        ("env HF_TOKEN=hf_x AWS_SECRET_ACCESS_KEY='a b' python", "env HF_TOKEN=*** AWS_SECRET_ACCESS_KEY=*** python"),
        ("login --password=x", "login --password=***"),
    ],
)
def test_secrets_are_taken_out(text: str, clean: str) -> None:
    assert redact(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "https://host/a@b",
        "https://host:8080/simple/@scope/name",
        "git+https://host/name.git@v1.0",
        "mail@host",
        "MV2_USE_CUDA=1 MPICH_ASYNC_PROGRESS=0",
        "ssh://host/path",
        "--tokenizer=bpe --max-tokens=512",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_a_variable_is_known_by_its_name_and_by_its_value() -> None:
    assert redact_variable("HF_TOKEN", "hf_x") == "***"
    assert redact_variable("PIP_INDEX_URL", "https://u:p@host/simple") == "https://***@host/simple"
    assert redact_variable("HF_TOKEN", "") == ""
    assert redact_variable("OMP_NUM_THREADS", "2") == "2"


SECRET = st.text(
    st.characters(codec="ascii", exclude_characters="/?#\"'<>", categories=("L", "N", "P", "S")), min_size=8
)


@given(user=st.from_regex(r"[a-z]{0,5}", fullmatch=True), secret=SECRET, port=st.sampled_from(["", ":8080"]))
def test_no_part_of_a_password_is_left(user: str, secret: str, port: str) -> None:
    assert redact(f"uv said: https://{user}:{secret}@host{port}/simple (404)") == (
        f"uv said: https://***@host{port}/simple (404)"
    )


@given(secret=SECRET.filter(lambda text: "&" not in text))
def test_no_value_of_a_query_is_left(secret: str) -> None:
    assert redact(f"https://host/a?sig={secret}") == "https://host/a?sig=***"


@given(secret=SECRET)
def test_no_secret_is_left_in_a_document(secret: str) -> None:
    url = f"https://user:{secret}@host/simple"
    document = {"argv": ["train", f"--data={url}"], "environment": {"HF_TOKEN": secret, "URL": url}, "ranks": 2}
    clean = "https://***@host/simple"
    assert redact_document(document) == {
        "argv": ["train", f"--data={clean}"],
        "environment": {"HF_TOKEN": "***", "URL": clean},
        "ranks": 2,
    }


def test_nothing_in_the_job_scripts_of_sites_is_taken_for_a_secret() -> None:
    for name in golden_scripts.names():
        assert redact(golden_scripts.read(name)) == golden_scripts.read(name), name
