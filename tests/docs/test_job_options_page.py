"""The page on job options has the table of the code; ``HIDL_WRITE_GOLDEN=1`` writes it."""

from __future__ import annotations

import os
from typing import get_args

from hidl_cli.launch.options import AllocationOptions, JobOptions, command_line_options
from hidl_cli.site.job_options import TERMS, job_options_page
from hidl_cli.site.schema import JobOptionName
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "job-options.md"
BEGIN, END = "<!-- table -->\n\n", "\n<!-- end of table -->"


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}{job_options_page()}{END}{after}"
    if os.environ.get("HIDL_WRITE_GOLDEN"):
        PAGE.write_text(wanted, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == wanted


def test_the_options_the_policy_and_the_table_have_the_same_names() -> None:
    inherited = command_line_options(AllocationOptions)
    options = {each.names[0] for name, each in command_line_options(JobOptions).items() if name not in inherited}
    assert options == set(TERMS) == set(get_args(JobOptionName))
