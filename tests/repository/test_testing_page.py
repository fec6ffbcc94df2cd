"""The shop of `docs/testing.md` and its tests, run as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.python import python
from tests.repository.pages import blocks, named


def write_files(folder: Path, conftest: str) -> None:
    """Write the blocks of the page to the files that their first lines name.

    :param conftest: the file with the fixture `app`.
    """
    examples = blocks(named("testing.md"), "python")
    files = dict(re.findall(r"\A# (\S+)\n(.*)", block.text, re.DOTALL)[0] for block in examples)
    if conftest != "conftest.py":
        fixtures = files["conftest.py"].partition("@pytest.fixture\ndef client")
        files["conftest.py"] = files[conftest] + "\n\n" + "".join(fixtures[1:])
    for name, text in files.items():
        if not name.startswith("conftest_"):
            (folder / name).write_text(text)


def run_tests(folder: Path, url: str) -> str:
    result = python(
        *["-m", "pytest", "-q", "-W", "error", "-p", "flask_cronjobs.testing.plugin"],
        cwd=folder,
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        TEST_DATABASE_URL=url,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_tests_of_the_page_pass_in_memory(tmp_path: Path) -> None:
    write_files(tmp_path, "conftest.py")
    assert "7 passed" in run_tests(tmp_path, "")


@pytest.mark.slow
def test_tests_of_the_page_pass_in_a_transaction_each(tmp_path: Path, database_url: str) -> None:
    write_files(tmp_path, "conftest_with_transaction.py")
    for _ in range(2):  # Nothing is left behind.
        assert "7 passed" in run_tests(tmp_path, database_url)
