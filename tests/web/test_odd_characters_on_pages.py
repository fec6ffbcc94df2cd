"""Names and messages from the tables cannot disturb a page; its buttons find their rows."""

from __future__ import annotations

import html
import re

from flask_cronjobs.models import JobBatch, JobDefinition, JobEffect

from .conftest import Pages

ODD = "odd\x1b[31mfake\x07\u202eline\u2066\x9b"
FORBIDDEN = "\x1b\x07\u202e\u2066\x9b"


def test_pages_show_no_control_characters_and_their_buttons_work(pages: Pages) -> None:
    pages.ticked(host=ODD, worker=ODD)
    pages.define(ODD)
    run_id = pages.add("dead", job_type=ODD, error_type=ODD, last_error=ODD, queue=ODD, result=ODD)
    pages.add("running", job_type=ODD, progress=0.5, progress_message=ODD, locked_by=ODD)
    pages.insert(JobEffect(key=ODD, state="in_doubt"), JobBatch(key=ODD))
    for path in ("", "runs", f"runs/{run_id}", "runs/2", "effects", "ticks", "batches"):
        shown = re.sub(r'<input type="hidden"[^>]*>', "", pages.shows(path, "fake"))
        assert [char for char in FORBIDDEN if char in html.unescape(shown)] == [], path
    form = pages.text().partition('action="/jobs/definitions/pause">')[2]
    field = re.search(r'name="name" value="([^"]*)"', form)
    assert field is not None
    assert html.unescape(field[1]) == ODD
    pages.post("/jobs/definitions/pause", name=ODD)
    with pages.app.app_context():
        assert pages.db.session.query(JobDefinition).one().paused_at is not None
    said = pages.text().partition("<ol")[0]
    assert [char for char in FORBIDDEN if char in said] == []
