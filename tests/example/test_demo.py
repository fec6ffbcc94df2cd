"""The demo, as `make demo` runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import brokers
from tests.python import python

pytestmark = pytest.mark.slow

#: All warnings are errors, except that connections to SQLite stay open until the process ends.
STRICT = ("-W", "error", "-W", "ignore::ResourceWarning")


def test_demo_plays_twice_and_sends_no_mail_twice(tmp_path: Path) -> None:
    for _ in range(2):
        result = python(*STRICT, "-m", "example_app.demo", "--folder", str(tmp_path))
        assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
        assert "9 emails, 0 of them twice." in result.stdout
        assert re.search(r"1,200.00   1,200.00\n.*  800.00   2,000.00\n", result.stdout)
        assert "succeeded  send_invoice_reminders" in result.stdout
        assert re.search(r"slots of \S+.* were missed", result.stdout)
        assert "0 ms  WorkerLost" in result.stdout
        charged = re.findall(r"^invoice (\d+) .* receipt ", result.stdout, re.M)
        assert charged == ["812", "813"]
        assert "  sums: done, " in result.stdout
        assert "  statements: done, 2 chunks, " in result.stdout
        assert "4 statements, one for each user." in result.stdout
        starts = [float(seconds) for seconds in re.findall("begun after (.*) s", result.stdout)]
        assert starts[0] == 0
        assert [start >= 0.4 for start in starts[2:]] == [True, True]
        assert "http://127.0.0.1:5000/jobs/" in result.stdout


def test_demo_on_celery_comes_to_the_same(tmp_path: Path) -> None:
    pytest.importorskip("celery")
    if brokers.find_program("redis-server", "redis-server") is None:
        pytest.skip("redis-server is not installed, and cannot be")
    result = python("-m", "example_app.demo_celery", "--folder", str(tmp_path))
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
    assert "9 emails, 0 of them twice." in result.stdout
    assert re.search(r"1,200.00   1,200.00\n.*  800.00   2,000.00\n", result.stdout)
    assert result.stdout.count("Celery's worker has executed what the tick handed over.") >= 4
    assert "send_invoice_reminders" in result.stdout
    assert "succeeded: task send_welcome" in (tmp_path / "worker.log").read_text()
