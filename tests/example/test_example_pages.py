"""The pages of the example app: what people type in, and who may do what."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from example_app.models import User
from flask_cronjobs.models import JobRun
from tests.example.tally import LINUS, PASSWORD, Tally, submit


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """The URL of an SQLite database: these pages are the same on both databases."""
    return sqlite_url


def test_wrong_sign_up_is_told_what_to_do(tally: Tally, client: FlaskClient) -> None:
    for field, value, sentence in (
        ("name", " ", "Please enter your name"),
        ("email", "linus@", "Please enter an email address"),
        ("email", "a@b.cd, e@f.gh", "Please enter an email address"),
        ("email", "linus@example.com\nBcc: all@example.com", "Please enter an email address"),
        ("password", "short", "10 characters"),
        ("timezone", "Mars/Olympus", "choose one of the time zones"),
    ):
        answer = submit(client, "/signup", **{**LINUS, field: value})
        assert answer.status_code == 422
        assert sentence in answer.text
        assert 'value="Linus"' in answer.text or field == "name"
        assert PASSWORD not in answer.text
        assert (tally.count(User), tally.count(JobRun)) == (0, 0)


def test_job_pages_are_for_staff(client: FlaskClient, staff: FlaskClient) -> None:
    sent_to_log_in = client.get("/jobs/")
    assert (sent_to_log_in.status_code, sent_to_log_in.location) == (302, "/login?next=/jobs/")
    assert client.post("/jobs/definitions/run").status_code in (302, 403)
    submit(client, "/signup", **LINUS)
    assert client.get("/jobs/").status_code == 403
    assert client.get("/support").status_code == 403
    assert staff.get("/jobs/").status_code == 200
    assert client.get("/jobs/health").status_code in (200, 503)


def test_form_from_elsewhere_is_refused(staff: FlaskClient) -> None:
    for path in ("/signup", "/login", "/logout", "/support"):
        for form in ({}, {"csrf": ""}, {"csrf": "é"}):
            answer = staff.post(path, data=form)
            assert answer.status_code == 400
            assert "Please try again" in answer.text


def test_add_staff_opens_support_and_jobs(tally: Tally, client: FlaskClient) -> None:
    runner = tally.app.test_cli_runner()
    result = runner.invoke(args=["add-staff", "sam@example.com", "--password", PASSWORD])
    assert result.exit_code == 0, result.output
    again = runner.invoke(args=["add-staff", "Sam@example.com", "--password", PASSWORD])
    assert (again.exit_code, again.output) == (
        1,
        "Error: sam@example.com has an account already.\n",
    )
    submit(client, "/login", email="sam@example.com", password=PASSWORD)
    assert client.get("/support").status_code == 200
