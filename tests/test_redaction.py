"""No secret is shown: of URLs, commands, environments and headers."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus
from xml.sax import saxutils

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from hidl_cli import redaction
from hidl_cli.redaction import (
    HIDDEN,
    Secrets,
    fill,
    is_secret_name,
    last_lines,
    names_in,
    read_end,
    redact,
    redact_document,
    redact_variable,
    shown_end,
)
from hidl_workloads.own_program import decode, encode
from tests.conftest import REPOSITORY
from tests.plan import golden_scripts
from tests.waiting import patience


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
        ("env HF_TOKEN=hf_x AWS_SECRET_ACCESS_KEY='a b' python", "env HF_TOKEN=*** AWS_SECRET_ACCESS_KEY='***' python"),
        ("https://h/x/t/ab-12345678-1234-1234-1234-123456789abc/c", "https://h/x/t/***/c"),
        ("pip install -i https://h/t/0a1b2c3d4e5f6g7h8i", "pip install -i https://h/t/***"),
        ("login --password=x", "login --password=***"),
        ("podman run --creds bob:hunter3 image", "podman run --creds bob:*** image"),
        ("skopeo copy --src-creds=bob:hunter3 docker://a", "skopeo copy --src-creds=bob:*** docker://a"),
        ("train --hf-token hf_X --password hf_Y", "train --hf-token *** --password ***"),
        ("export HF_TOKEN='it is'; python train.py", "export HF_TOKEN='***'; python train.py"),
        ("bash -c 'export HF_TOKEN=abc' --x 'y z'", "bash -c 'export HF_TOKEN=***' --x 'y z'"),
        ("export HF_TOKEN=${TOKEN:-abc}; x", "export HF_TOKEN=***; x"),
        ("{'token': 'hf_x', 'ranks': 1}", "{'token': '***', 'ranks': 1}"),
        ('os.environ["HF_TOKEN"] = "hf_x"', 'os.environ["HF_TOKEN"] = "***"'),
        ("read config:\npassword: hunter2\nranks: 2", "read config:\npassword: ***\nranks: 2"),
        ("curl -u me:hunter2 https://host", "curl -u me:*** https://host"),
        ("curl -u bob:1234 -u 'bob:$ecret'", "curl -u bob:*** -u 'bob:***'"),
        ("postgres://u:pXX@ssYY/w0rdZZ@h/db", "postgres://***@h/db"),
        ("https://bob:abc@def?ghi@host/x", "https://***@host/x"),
        ("https://u:1234/abc@h/p https://u:1234/@abc@h/p", "https://***@h/p https://***@h/p"),
        ("http://u:p/q@h/a,http://v:q@h2/b", "http://***@h/a,http://***@h2/b"),
        ("git+https://u:p@host/name.git@v1.0", "git+https://***@host/name.git@v1.0"),
        ("https://to@k/en@host/x https://to@k:e/n@host/x", "https://***@host/x https://***@host/x"),
        ("https://tok@host:8080/a@b http://tok@localhost/a@b", "https://***@host:8080/a@b http://***@localhost/a@b"),
        ("https://to@k?en@host https://tok@host/a@1.2", "https://***@host https://***@host/a@1.2"),
        ("git+https://tok@git.example.org/a@main", "git+https://***@git.example.org/a@main"),
        ("https://u:p/w@10.1.2.3 https://u:p/w@h1/x", "https://***@10.1.2.3 https://***@h1/x"),
        ("https://u:p/w@3scale.example.org https://u:p/w@v1host", "https://***@3scale.example.org https://***@v1host"),
        ("train --password '$ecretPass99' '--hf-token=$ecretPass99'", "train --password '***' '--hf-token=***'"),
        ("train --token {abcd1234efgh} --token %abcd1234%", "train --token *** --token ***"),
        ("train --pass hunter22x --pwd hunter22x FOO_PASS=hunter22x", "train --pass *** --pwd *** FOO_PASS=***"),
        ("Server=x;Pwd=hunter2x;Database=y", "Server=x;Pwd=***"),
        ("openssl rsa -passin pass:hunter2 -in x", "openssl rsa -passin pass:*** -in x"),
        (
            "redis-cli -h x -a hunter2; docker login -u me -p hunter2",
            "redis-cli -h x -a ***; docker login -u me -p ***",
        ),
        ("password: correct horse battery  # mine\nranks: 2", "password: ***  # mine\nranks: 2"),
        ('db_password: $ecretPass99\npassword: "begins', "db_password: ***\npassword: ***"),
        ("got ghp_abcdefghij0123456789 from the vault", "got *** from the vault"),
        ("curl -H 'X-Api-Key: s3cr3tVALUE' https://host", "curl -H 'X-Api-Key: ***' https://host"),
        ('curl -H "PRIVATE-TOKEN: s3cr3tVALUE" https://host', 'curl -H "PRIVATE-TOKEN: ***" https://host'),
        ('{"Authorization": "Bearer s3cr3tVALUE"}', '{"Authorization": "Bearer ***"}'),
        ('{\\"Authorization\\": \\"Bearer s3cr3tVALUE\\"}', '{\\"Authorization\\": \\"Bearer ***\\"}'),
        ("Authorization: s3cr3tVALUE", "Authorization: ***"),
        ("Set-Cookie: session=s3cr3tVALUE; Path=/", "Set-Cookie: ***"),
        ("sent Bearer s3cr3tVALUE.x-y_z=", "sent Bearer ***"),
        ("token: s3cr3tVALUE  # of the hub", "token: ***  # of the hub"),
        ("Token: s3cr3tVALUE expires soon", "Token: *** expires soon"),
        ("[hub]\ntoken = s3cr3tVALUE\n", "[hub]\ntoken = ***\n"),
        ("WANDB_API_KEY: s3cr3tVALUE, RANKS: 2", "WANDB_API_KEY: ***, RANKS: 2"),
        ("export OPENAI_KEY=s3cr3tVALUE", "export OPENAI_KEY=***"),
        ("Name=x;AccountKey=s3cr3tVALUE==;Suffix=y", "Name=x;AccountKey=***"),
        ("train --token \\\n    s3cr3tVALUE \\\n    --lr 1", "train --token \\\n    *** \\\n    --lr 1"),
        ("TOKEN+=s3cr3tVALUE PASSWORD:=s3cr3tVALUE", "TOKEN+=*** PASSWORD:=***"),
        ("setenv TOKEN s3cr3tVALUE; set -gx HF_TOKEN s3cr3tVALUE", "setenv TOKEN ***; set -gx HF_TOKEN ***"),
        ('setenv("HF_TOKEN", "s3cr3tVALUE")', 'setenv("HF_TOKEN", "***")'),
        ('["train", "--hf-token", "s3cr3tVALUE"]', '["train", "--hf-token", "***"]'),
        ("<password>s3cr3tVALUE</password>", "<password>***</password>"),
        ("machine hub login me password s3cr3tVALUE", "machine hub login me password ***"),
        (
            "sshpass -p s3cr3tVALUE ssh host; mysql -u me -ps3cr3tVALUE db",
            "sshpass -p *** ssh host; mysql -u me -p*** db",
        ),
        (
            "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\nbm8=\n-----END OPENSSH PRIVATE KEY-----\n",
            "-----BEGIN OPENSSH PRIVATE KEY-----***-----END OPENSSH PRIVATE KEY-----\n",
        ),
        ("https://hooks.slack.com/services/T00/B00/s3cr3tVALUE", "https://hooks.slack.com/services/***"),
        ("key sk-ant-api03-abcdefghij0123456789_A-b", "key ***"),
        ("key AIza0123456789abcdefghijklmnopqrstuvwxy", "key ***"),
        ("key pypi-AgEIcHlwaS5vcmcCJDAx and npm_0123456789abcdefghijklmnopqrstuvwxyz", "key *** and ***"),
    ],
)
def test_secrets_are_taken_out(text: str, clean: str) -> None:
    assert redact(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "https://host/a@b",
        "https://host:8080/simple/@scope/name",
        "https://host:8080/@scope/name@1.2 https://host:8080/name@v1.2.3-rc1 https://host/@scope/name@1",
        "git+https://host/name.git@v1.0",
        "mail@host",
        "MV2_USE_CUDA=1 MPICH_ASYNC_PROGRESS=0",
        "ssh://host/path",
        "--tokenizer=bpe --max-tokens=512",
        "--pad_token_id=0 --eos_token '</s>' --token-drop 0.1 --num_token 3",
        "--password {password} --hf-token $HF_TOKEN",
        'export HF_TOKEN="$(cat ~/.tok)"; python3 prog.py',
        "HF_TOKEN_PATH=/home/me/.token --use_auth_token True",
        "docker run --user 1000:1000",
        "docker://registry:5000/image@sha256:abc http://localhost:8080/a@b",
        "bash -c 'train --token $HF_TOKEN' && bash -c \"train --token '$HF_TOKEN'\"",
        "PASS: test_2x_ranks\nfirst pass: 3x4 of 12\nDB=x PWD=/home/me1 --pass 2 --pwd=/tmp/x1 LLVM_PASS=inline",
        "password: the one of your account\nPassword: Permission denied, please try again.",
        "ssh me@login -p 2222",
        "--set TOKEN=VALUE",
        "time per token: 12.3456ms, token: 1.23456e+05, tokens: 12345678",
        "token = 100000\ntoken: the next one\n",
        "usage: train --token\nThe end",
        '["token", "loss"] ["--token", "--lr"]',
        "sort_key=abc123456 primary-key: abc123456",
        "Bearer of the token: /home/me/.token1",
        "the authorization: none; login at 12:00",
        "the token: 2026-01-01T00:00:00 it was, or token: ./a/b2/c3456789",
        "https://discuss.pytorch.org/t/nccl-error-2-on-a100/1234 https://h/t/${TOKEN}/simple",
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
PASSWORD = st.text(
    st.characters(codec="ascii", exclude_characters="\"'<>", categories=("L", "N", "P", "S")), min_size=8
)


@given(user=st.from_regex(r"[a-z]{0,5}", fullmatch=True), secret=PASSWORD, port=st.sampled_from(["", ":8080"]))
@example("u", "pXX@ssYY/w0rdZZ", "").via("cut at the first @")
@example("u", "1234/abc", "").via("taken for a port")
def test_no_part_of_a_password_is_left(user: str, secret: str, port: str) -> None:
    assert redact(f"uv said: https://{user}:{secret}@host{port}/simple (404)") == (
        f"uv said: https://***@host{port}/simple (404)"
    )


@given(secret=st.from_regex(r"[A-Za-z0-9]{1,8}@[A-Za-z0-9]{0,8}:?[/?#][A-Za-z0-9@/?#:]{0,12}", fullmatch=True))
@example("to@k/en").via("cut at the first @")
def test_no_part_of_a_token_is_left(secret: str) -> None:
    assert redact(f"uv said: https://{secret}@host/simple (404)") == "uv said: https://***@host/simple (404)"


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


PLAIN_WORD = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=10, max_size=30).filter(
    lambda word: not is_secret_name(word) and any(map(str.isdigit, word))
)
#: Also secrets that resemble references, and hold what separates the parts of a URL.
WORD = st.one_of(
    PLAIN_WORD,
    st.builds(str.format, st.sampled_from(["${}", "${{{}}}", "{{{}}}", "%{}%"]), PLAIN_WORD),
    st.builds("".join, st.tuples(PLAIN_WORD, st.sampled_from("@/?:"), PLAIN_WORD, st.sampled_from("@/?:"), PLAIN_WORD)),
)


def planted(secret: str) -> dict[str, object]:
    """Places of a secret that are known to hold one."""
    return {
        "option": {"argv": ["train", f"--hf-token={secret}"]},
        "two words": {"argv": ["train", "--password", secret]},
        "variable": {"environment": {"API_KEY": secret}},
        "assignment": {"argv": ["env", f"HF_TOKEN={secret}", "train"]},
        "script": {"argv": ["bash", "-c", f"export HF_TOKEN='{secret}'; train"]},
        "launcher": {"argv": ["mpiexec", "-genv", "HF_TOKEN", secret, "train"]},
        "URL": {"argv": [f"https://user:{secret}@host/simple"]},
        "query": {"argv": [f"https://host/simple?sig={secret}"]},
        "parameter": {"parameters": {"token": {"type": "str", "default": secret}}},
        "setting": {"tuning": [{"name": "MY_SECRET", "value": secret, "origin": "site"}]},
        "short option": {"argv": ["train", "--pass", secret]},
        "short assignment": {"argv": ["env", f"FOO_PASS={secret}", "train", f"--pwd={secret}"]},
        "connection": {"argv": ["train", f"Server=x;Pwd={secret}"]},
        "login": {"argv": ["curl", "-u", f"bob:{secret}", "https://host"]},
        "login with =": {"argv": ["curl", f"--user=bob:{secret}"]},
        "sshpass": {"argv": ["sshpass", "-p", secret, "ssh", "host"]},
        "mysql": {"argv": ["mysql", "-u", "root", f"-p{secret}", "db"]},
        "openssl": {"argv": ["openssl", "rsa", "-passin", f"pass:{secret}"]},
        "redis": {"argv": ["redis-cli", "-a", secret]},
        "registry": {"argv": ["docker", "login", "-u", "me", "-p", secret]},
        "header": {"headers": {"Authorization": f"Bearer {secret}"}},
    }


@given(secret=WORD, place=st.sampled_from(sorted(planted(""))))
def test_a_secret_is_hidden_in_all_places_once_one_tells_it(secret: str, place: str) -> None:
    document = {
        **planted(secret)[place],  # type: ignore[dict-item]
        "title": f"train {secret} and more",
        "nested": [{"key": [f"x{secret}y", 1]}],
        "quoted": f"bash -c 'echo '\"'\"'{secret}'\"'\"''",
    }
    secrets = Secrets(named=True).learn(document)
    shown = secrets.hide_document(document)
    assert secret not in repr(shown)
    for printed in (secret, repr(secret)[1:-1], quote(secret), quote(secret, safe=""), quote_plus(secret)):
        assert printed not in secrets.hide(f"printed: {printed}\n")
    values = {name: f"user:{secret}" if name.startswith("USER") else secret for name in names_in(repr(shown))}
    assert fill(shown, values) == document
    assert secrets.hide_document(shown) == shown


def test_credentials_of_a_container_runtime_are_hidden_in_a_list() -> None:
    words = ["--creds", "bob:hunter3pw", "--creds=eve:hunter4pw", "--tls-verify=false"]
    assert redact_document({"arguments": words})["arguments"] == [
        "--creds", "bob:***", "--creds=eve:***", "--tls-verify=false",
    ]  # fmt: skip


@given(secret=WORD, place=st.sampled_from(sorted(name for name, each in planted("").items() if "argv" in each)))
def test_a_command_line_hides_the_same_as_a_list_and_as_text(secret: str, place: str) -> None:
    words = planted(secret)[place]["argv"]  # type: ignore[index]
    shown = redact_document(words)
    assert secret not in " ".join(shown)
    if place != "launcher":  # -genv NAME VALUE is known in lists only
        assert shlex.split(redact(shlex.join(words))) == shown


SCRIPTS = (
    "set -e\nexport HF_TOKEN={}\npython3 prog.py y",
    "python3 prog.py --password {}\n./a",
    "cat <<EOF\nhf_token: {}\nEOF\n./a",
    "export HF_TOKEN='{}\nx'; ./a",
    "curl -u me:{} https://host\tx",
)


@given(secret=WORD | st.just("x") | st.just("ab%0Acd12"), script=st.sampled_from(SCRIPTS))
def test_encoded_words_hide_the_same_under_the_same_names(secret: str, script: str) -> None:
    words = ["bash", "-c", script.format(secret), ":", ""]
    argv = ["mpiexec", "-n", "1", "python", "-m", "hidl_workloads.own_program", *encode(["/a b", *words])]
    document = {"arguments": words, "steps": [{"argv": argv}]}
    secrets = Secrets(named=True).learn(document)
    shown = secrets.hide_document(document)
    shown_argv = shown["steps"][0]["argv"]
    assert shown_argv[:7] == argv[:7]
    assert [decode(word) for word in shown_argv[7:]] == shown["arguments"]
    line = f"if true; then\nUCX_TLS='^tcp' timed launch 1 {shlex.join(argv)} 6<&-\nelse :; fi\n"
    before, clean, after = secrets.hide(line).splitlines()
    assert (before, after) == ("if true; then", "else :; fi")
    assert shlex.split(clean) == ["UCX_TLS=^tcp", "timed", "launch", "1", *shown_argv, "6<&-"]
    assert len(secrets.places) <= 1


def test_the_name_of_a_hidden_word_can_be_that_of_a_variable() -> None:
    assert Secrets(named=True).hide_document(["--0a-token", "s3cr3tVALUE"])[1] == "***SECRET_0A_TOKEN***"


def in_csv(text: str) -> str:
    file = io.StringIO()
    csv.writer(file).writerow([text])
    return file.getvalue()


def in_bash(text: str) -> str:
    """The word as bash's ``set -x`` prints it in the C locale."""
    escaped = repr(text.encode() + b"'\"")[2:-4]
    return f"$'{re.sub(r'.x([0-9a-f]{2})', lambda byte: chr(92) + format(int(byte[1], 16), '03o'), escaped)}'"


NOTATIONS: dict[str, Callable[[str], str]] = {
    "repr": repr,
    "ascii": ascii,
    "bytes": lambda text: repr(text.encode()),
    "both quotes": lambda text: repr(f"{text}'\""),
    "JSON": json.dumps,
    "JSON in Unicode": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON within JSON": lambda text: json.dumps({"a": json.dumps({"b": text})}),
    "JSON within JSON within JSON": lambda text: json.dumps(json.dumps(json.dumps(text))),
    "JSON of PHP": lambda text: json.dumps(text).replace("/", "\\/"),
    "JSON of Go": lambda text: json.dumps(text).replace("&", "\\u0026").replace("<", "\\u003C"),
    "repr of JSON": lambda text: repr([json.dumps([text])]),
    "URL": lambda text: quote(text, safe=""),
    "URL in lower case": lambda text: re.sub("%..", lambda byte: byte[0].lower(), quote(text, safe="")),
    "URL within URL": lambda text: quote(quote(text), safe=""),
    "form": quote_plus,
    "HTML": html.escape,
    "HTML in ASCII": lambda text: html.escape(text).encode("ascii", "xmlcharrefreplace").decode(),
    "XML": lambda text: saxutils.escape(text, {'"': "&quot;", "'": "&apos;"}),
    "HTML of JSON": lambda text: html.escape(json.dumps(text)),
    "YAML": lambda text: yaml.safe_dump([text], width=10**6, allow_unicode=True),
    "YAML in ASCII": lambda text: yaml.safe_dump([text], width=10**6, default_style='"'),
    "CSV": in_csv,
    "shell": shlex.quote,
    "JSON of shell": lambda text: json.dumps(shlex.quote(text)),
    "CSV of JSON": lambda text: in_csv(json.dumps(text)),
    "URL of JSON": lambda text: quote(json.dumps(text)),
    "shell within shell": lambda text: shlex.quote(f"bash -c {shlex.quote(text)}"),
    "trace of bash": in_bash,
    "words of hidl": lambda text: encode([text])[0],
}


@given(
    middle=st.text("aF29äß€😀'\"\\/%& <>$:;@+=~", max_size=12) | st.text("a\\'\"", max_size=8),
    notation=st.sampled_from(sorted(NOTATIONS)),
)
@example("a/b", "URL in lower case").via("only upper case was known")
@example("ä", "ascii").via("only repr was known")
@example("ä", "bytes").via("only repr was known")
@example('ä"\\', "JSON within JSON").via("only JSON was known")
def test_a_known_secret_is_hidden_in_any_notation(middle: str, notation: str) -> None:
    secret = f"s3cr{middle}9xyz"
    text = f"printed: {NOTATIONS[notation](secret)}\n"
    shown = Secrets().learn({"password": secret}).hide(text)
    assert "s3cr" not in shown
    assert "9xyz" not in shown


@pytest.mark.parametrize("notation", [repr, json.dumps, quote, lambda text: encode([text])[0], in_bash])
def test_a_secret_of_several_lines_is_hidden_in_any_notation(notation: Callable[[str], str]) -> None:
    secrets = Secrets().learn({"password": "s3cr\ntwo\t9xyz"})
    assert secrets.hide(f"{notation('s3cr' + chr(10) + 'two' + chr(9) + '9xyz')}").strip("$'\"") == HIDDEN


@pytest.mark.parametrize("reference", ["{key}", "{token}", "{key?--api-key}"])
def test_a_placeholder_of_a_parameter_stays(reference: str) -> None:
    words = ["train", "--api-key", reference, f"--password={reference}"]
    for document in (
        {"parameters": {"key": "x", "token": {"type": "str"}}, "words": words},
        ["hidl", "run", "--set", "key=x", "--set=token=y", "--", *words],
    ):
        assert str(words)[1:-1] in str(redact_document(document))


def test_values_of_one_name_are_told_apart() -> None:
    document = {"steps": [{"token": "first-value"}, {"token": "second-value"}, {"token": "first-value"}]}
    shown = Secrets(named=True).hide_document(document)
    assert [step["token"] for step in shown["steps"]] == ["***TOKEN***", "***TOKEN_2***", "***TOKEN***"]


def test_a_number_may_be_a_secret_and_a_short_one_is_none() -> None:
    assert redact_document({"password": 12345678, "token": 1, "steps": 5000}) == {
        "password": HIDDEN,
        "token": 1,
        "steps": 5000,
    }


@given(st.from_regex(re.compile(redaction._WORDS, re.IGNORECASE), fullmatch=True))
def test_each_name_of_a_secret_passes_the_test_that_precedes_the_regular_expressions(word: str) -> None:
    assert redaction._may_name(f"x {word}=1")


def test_no_regular_expression_of_secret_names_is_compiled_for_the_job_scripts_of_sites() -> None:
    code = (
        "from hidl_cli import redaction; from tests.plan import golden_scripts\n"
        "for name in golden_scripts.names(): redaction.redact(golden_scripts.read(name))\n"
        "print([name for name, value in vars(redaction).items() if len(getattr(value, '__dict__', {})) > 2])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert not {"_ASSIGNED", "_OPTION", "_QUOTED", "_LINE", "_IS_NAME"} & set(re.findall(r"\w+", shown.stdout))


def test_nothing_in_the_job_scripts_of_sites_is_taken_for_a_secret() -> None:
    for name in golden_scripts.names():
        assert redact(golden_scripts.read(name)) == golden_scripts.read(name), name


def test_what_is_below_the_name_of_a_secret_is_hidden_if_it_looks_like_one() -> None:
    document = {"credentials": {"user": "me", "parts": {"key": "s3cr3tVALUE"}}, "token": {"type": "bpe", "size": 32000}}
    hidden = {"credentials": {"user": "me", "parts": {"key": HIDDEN}}, "token": {"type": "bpe", "size": 32000}}
    assert redact_document(document) == hidden


def test_a_word_that_looks_like_a_mark_is_not_filled_with_a_secret() -> None:
    document = {"argv": ["train", "--token", "s3cr3tVALUE", "***TOKEN***"]}
    shown = Secrets(named=True).learn(document).hide_document(document)
    (name,) = set(names_in(repr(shown["argv"][2])))
    assert fill(shown, {name: "s3cr3tVALUE"}) == document


def test_a_long_word_takes_linear_time() -> None:
    def seconds(repetitions: int) -> float:
        began = time.process_time()
        redact("token" * repetitions)
        return time.process_time() - began

    seconds(10)  # compiles the regular expressions
    assert seconds(1600) < 10 * max(0.01, min(seconds(400) for _ in range(3)))


@pytest.mark.parametrize("unit", ["\"'", "'", '"', "\\'", '\\"', "'\\\"", "%25", "&amp;", "\\\\n"])
@pytest.mark.parametrize("times", [7, 40])
def test_a_secret_of_many_quotes_is_searched_quickly(unit: str, times: int) -> None:
    secrets = Secrets().learn({"password": f"{unit * times}x1234567"})
    began = time.process_time()
    assert secrets.hide(f"{unit * 100}y") == f"{unit * 100}y"
    assert time.process_time() - began < patience(5)


TOKEN = "q7Zr8Kp2Wm5Xv9Tb4Nc6Jd1Lf3Gh0Ys7"


@pytest.mark.parametrize("place", [0, 20_000, 39_999])
@pytest.mark.parametrize(
    "named",
    [
        f"connect --token {TOKEN}",
        f'{{"token":\n  "{TOKEN}"}}',
        f"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA1234\n{TOKEN}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_is_found_anywhere_in_a_log(tmp_path: Path, place: int, named: str) -> None:
    lines = [f"step {number} token rate {number / 7:.3f} at 22:26:{number % 60:02}" for number in range(40_000)]
    lines[1:1] = named.splitlines()[:-1]  # lines of the same kinds come first, without the secret or with another one
    lines[place:place] = named.splitlines()
    (tmp_path / "stdout.log").write_text("\n".join(lines))
    assert Secrets().learn_log(tmp_path / "stdout.log").hide(f"sent {TOKEN} to server") == f"sent {HIDDEN} to server"


def test_only_the_requested_part_of_a_log_is_searched(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    log.write_text(f"token={TOKEN}\nstep 1\n")
    begin = log.stat().st_size - len("step 1\n")
    assert TOKEN in Secrets().learn_log(log, begin).hide(TOKEN)
    assert TOKEN not in Secrets().learn_log(log, 0, begin).hide(TOKEN)
    assert Secrets().learn_log(tmp_path / "none.log").hide("a") == "a"


@pytest.mark.parametrize(
    ("data", "size", "end"),
    [
        (b"a\nb\nc", 5, b"a\nb\nc"),
        (b"a\nb\nc", 4, b"b\nc"),
        (b"a\nb\nc", 3, b"b\nc"),
        (b"a\rbc\rd", 3, b"d"),
        (b"a b c d", 3, b""),
    ],
)
def test_the_end_of_a_log_begins_at_a_line(tmp_path: Path, data: bytes, size: int, end: bytes) -> None:
    (tmp_path / "a.log").write_bytes(data)
    assert last_lines(data, size) == read_end(tmp_path / "a.log", size) == end


@pytest.mark.parametrize(
    ("output", "end"),
    [
        ("a\nb\nc\n", "a\nb\nc"),
        ("first\nsecond\nthird\n\n", "second\nthird"),
        (f"connect --token Sh0wnEnd{TOKEN}\n" + "step 1\n" * 9000 + f"sent Sh0wnEnd{TOKEN} to", f"sent {HIDDEN} to"),
        (f"connect --token Sh0wnEnd{TOKEN}\nlast\n", "last"),
        ("x" * 100_000 + " the end", "xxxx the end"),
        ("x" * 100_000 + " the end\n\n", "xxxx the end"),
        ("", ""),
    ],
    ids=["short", "lines", "name before", "name beside", "long line", "blank end", "empty"],  # in $PYTEST_CURRENT_TEST
)
def test_the_shown_end_of_an_output_contains_no_part_of_a_secret(output: str, end: str) -> None:
    assert shown_end(output, 12) == end


@pytest.mark.parametrize("secret", ["&&&&&&&&1a", "'ab cd1234", '"abcd1234', "%abcd1234", "\\abcd1234"])
@pytest.mark.parametrize("text", ["\\" * 50_000, "%255C" * 20_000, "%5c" * 20_000])
def test_a_long_sequence_of_backslashes_is_searched_in_linear_time(secret: str, text: str) -> None:
    secrets = Secrets().learn({"password": secret})
    began = time.process_time()
    assert secrets.hide(text) == text
    assert secrets.hide(f"{text}{secret}") != f"{text}{secret}"
    assert time.process_time() - began < patience(5)


def test_a_secret_after_one_that_ends_with_a_backslash_is_hidden() -> None:
    secrets = Secrets().learn({"password": "ab1234cd\\", "token": "&&5678ef"})
    assert "5678" not in secrets.hide("ab1234cd\\&&5678ef")
    assert "5678" not in secrets.hide("5C&&5678ef")
