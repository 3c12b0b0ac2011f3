"""How tutorials are run and compared: what may vary, and that nothing else may."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tutorials.tutorial import Command, WrittenFile, is_as_shown, rewritten, run, steps
from tests.tutorials.volatile import normal

PAGE = """\
```python title="src/one.py"
print(1)
```

```console
$ x=$(cat src/one.py)
$ echo "$x" &&
> false
print(1)
$ echo $?
1
```
"""


def test_a_page_is_files_and_commands_with_what_they_print() -> None:
    file, first, second, third = steps(PAGE)

    assert file == WrittenFile("src/one.py", "print(1)\n")
    assert [step.text for step in (first, second, third) if isinstance(step, Command)] == [
        "x=$(cat src/one.py)",
        'echo "$x" &&\nfalse',
        "echo $?",
    ]
    assert isinstance(second, Command)
    assert second.printed == "print(1)"


def test_all_commands_run_in_one_shell(tmp_path: Path) -> None:
    assert run(PAGE, tmp_path, os.environ, timeout=20) == ["", "print(1)", "1"]


@pytest.mark.parametrize("block", ["```bash\nls\n```", "```sh\nls\n```", "```\nls\n```", "```console\nls\n```"])
def test_a_block_that_would_not_be_run_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="line"):
        steps(block)


def test_only_what_differs_is_written_again(tmp_path: Path) -> None:
    now = ["", "print(1)", f"$ {tmp_path}"]
    assert rewritten(PAGE, now, tmp_path) == PAGE.replace("\n1\n", "\n $ /home/you\n")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("run 20261121-204525-mpi-sanity-e96a ended", "run 20270101-000000-mpi-sanity-ffff ended"),
        ("[  0.57 s] up", "[ 12.01 s] up"),
        (" 2  26.41  3.7%  1.65", " 2  5,126.4  13.7%   1.7"),
        ("a\n...\nd", "a\nb\nc\nd"),
        ("a\n...\nd", "a\nd"),
        ("ranks ... done", "ranks 1, 2 done"),
        ("ok all\nmetric", "ok all\nrunning: the job is ending\nmetric"),
        ("pass: 2 ranks: efficiency 0.9 reaches\nthe target", "fail: 2 ranks: efficiency 0.5 lies below it"),
    ],
)
def test_this_may_vary(tmp_path: Path, shown: str, printed: str) -> None:
    assert is_as_shown(shown, printed, tmp_path)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("mpi: installed", "mpi: removed"),
        ("8 ranks", "4 ranks"),
        ("a\nb", "a"),
        ("a", "a\nb"),
        ("a\n...\nd", "a\nb\nc"),
        ("20261121-204525-mpi-sanity-e96a", "20261121-204525-kmeans-e96a"),
        ("pass: all ranks agree", "fail: all ranks agree"),
    ],
)
def test_this_may_not(tmp_path: Path, shown: str, printed: str) -> None:
    assert not is_as_shown(shown, printed, tmp_path)


def test_places_of_this_machine_are_called_as_on_the_pages(tmp_path: Path) -> None:
    assert normal(f"{tmp_path}/a on {os.uname().nodename}", tmp_path) == "/home/you/a on laptop"
