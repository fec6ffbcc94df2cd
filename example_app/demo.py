"""``python -m example_app.demo``: a day of Tally in a few seconds, on SQLite, with real email."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import make_url, select

from flask_cronjobs import Schedule
from flask_cronjobs.models import JobDefinition, JobEffect, JobRun, JobTick

from . import cards, create_app, sample
from .extensions import db
from .mailbox import Mailbox
from .models import Entry, Invoice, Statement, User
from .tasks import close_month, send_welcome

ROOT = Path(__file__).parent.parent
PASSWORD = "correct horse"
GRUMPY = "customer7@example.net"
#: Seconds that a run stays with a worker that does not renew its lease.
LEASE = 5


def main() -> None:
    """Run the demo, and print how to open its pages."""
    parser = argparse.ArgumentParser(prog="python -m example_app.demo", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "instance" / "demo", help="the folder of its database"
    )
    folder: Path = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old_file in folder.glob("demo.sqlite*"):
        old_file.unlink()
    url = f"sqlite:///{folder / 'demo.sqlite'}"
    with Mailbox() as mailbox:
        mailbox.answers[GRUMPY] = ["451 4.3.0 Try again later"]
        Demo(url, mailbox).play()
    farewell(url)


class Demo:
    """The steps of the demo.

    :param url: the database's URL.
    :param mailbox: the mail server.
    """

    def __init__(self, url: str, mailbox: Mailbox) -> None:
        self.url = url
        self.mailbox = mailbox
        books = str(Path(str(make_url(url).database)).with_name("cards.txt"))
        Path(books).unlink(missing_ok=True)
        self.app = create_app({"SQLALCHEMY_DATABASE_URI": url, "CARD_BOOKS": books})
        self.environment = {
            **os.environ,
            "FLASK_APP": "example_app",
            "FLASK_CARD_BOOKS": books,
            "FLASK_CRONJOBS_LEASE": str(LEASE),
            "DATABASE_URL": url,
            "MAIL_PORT": str(mailbox.port),
        }

    def play(self) -> None:
        """Run all steps in order."""
        self.set_up()
        self.let_a_day_pass()
        self.flask("jobs", "tick")
        self.look()
        self.try_again()
        self.kill_a_worker()
        self.keep_the_ledger()
        self.close_the_month()
        self.keep_to_the_rate()
        self.read_mail()

    def set_up(self) -> None:
        """Create tables and sample data, and use the pages as a visitor does."""
        say("Set up", "Tables in SQLite, three users with invoices, a mail server on this machine.")
        self.flask("jobs", "admin", "init")
        self.flask("init-db")
        with self.app.app_context():
            sample.add_sample(PASSWORD)
        client = self.app.test_client()
        post(client, "/signup", name="Linus", email="linus@example.com", password=PASSWORD,
             timezone="Europe/Helsinki")  # fmt: skip
        note("Linus signed up at /signup: his welcome was enqueued in the same transaction.")
        client = self.app.test_client()
        post(client, "/login", email=sample.STAFF, password=PASSWORD)
        today = datetime.now(timezone.utc).date()
        post(client, "/support", email="ada@example.com", request_id=f"{1:032x}",
             date_from=f"{today - timedelta(days=30)}", date_to=f"{today}")  # fmt: skip
        note("At /support, somebody had a report on the last 30 days sent to Ada now.")

    def let_a_day_pass(self) -> None:
        """Set the schedules back by a day, as if no tick had run since."""
        say("Tick", "The first tick finds the schedules in the code. It prints only what it ran.")
        note(
            "A slot is one time of a schedule. Each makes one run; an attempt is one try of a run."
        )
        self.flask("jobs", "tick")
        with self.app.app_context():
            put_back(timedelta(days=1))
        say("A day later", "As if cron had been down for a day: what is due now?")

    def look(self) -> None:
        """Show what the operator sees."""
        say("Look", f"One email was not accepted: the server cannot deliver to {GRUMPY} now.")
        self.flask("jobs", "admin")
        self.flask("jobs", "admin", "list")

    def try_again(self) -> None:
        """Retry the failed run now."""
        say("Try again", "The run would be retried by itself within a minute. To retry it now:")
        self.flask("jobs", "admin", "retry", str(failed_run(self.app)))
        self.flask("jobs", "tick")

    def kill_a_worker(self) -> None:
        """Kill a worker between a charge and its record, and let a tick reclaim its run."""
        say(
            "Kill",
            "The billing check has two cards to charge. Its worker is killed after one of them,",
        )
        print("before that invoice is marked as paid:")
        with self.app.app_context():
            sample.add_card_invoices()
        self.flask("jobs", "admin", "run", "check_billing_nightly")
        with subprocess.Popen(
            [sys.executable, "-m", "flask", "jobs", "tick"],
            cwd=ROOT, env=self.environment | {"FLASK_CARD_PAUSE": "600"}, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as tick:  # fmt: skip
            print("$ flask jobs tick &", flush=True)
            while not self.one_is_charged():
                time.sleep(0.1)
            os.killpg(tick.pid, signal.SIGKILL)
        print("$ kill -9 %1", flush=True)
        note(f"Its lease ends after {LEASE} seconds. Then a tick reclaims the run.")
        time.sleep(LEASE)
        with self.app.app_context():
            while waits("check_billing_nightly"):
                time.sleep(1)
                self.flask("jobs", "tick")
            note("What is in the card provider's books:")
            print(cards.books().read_text(), end="")

    def one_is_charged(self) -> bool:
        """Return whether the first charge is done, and recorded as done."""
        with self.app.app_context():
            keys_done = select(JobEffect.key).where(JobEffect.state == "done")
            return any(key.startswith("invoice_charge:") for key in db.session.scalars(keys_done))

    def keep_the_ledger(self) -> None:
        """Pay Ada's open invoices, and show the lines of her ledger."""
        say("Ledger", "Ada's customers paid. Her ledger lists what came in, with the sum so far.")
        print("Each line is a run, which waits for the one before, so that the sums are right:")
        client = self.app.test_client()
        post(client, "/login", email="ada@example.com", password=PASSWORD)
        with self.app.app_context():
            ada = db.session.scalars(select(User).where(User.email == "ada@example.com")).one()
            unpaid = select(Invoice.id).where(Invoice.user_id == ada.id, Invoice.paid_on.is_(None))
            for invoice_id in db.session.scalars(unpaid.order_by(Invoice.id)).all():
                post(client, f"/invoices/{invoice_id}/paid")
            while waits("book"):
                self.flask("jobs", "tick")
            for line in db.session.scalars(select(Entry).order_by(Entry.id)):
                print(f"  {line.text:<18} {line.cents / 100:>9,.2f}  {line.balance / 100:>9,.2f}")

    def close_the_month(self) -> None:
        """Close the month in steps, and show them."""
        say("Steps", "A month is closed in steps: sums, then a statement for each user.")
        print("Each is done once, however often the run is stopped. Each short tick does some:")
        with self.app.app_context():
            month = f"{datetime.now(timezone.utc):%Y-%m}"
            run_id = close_month.using(commit=True).enqueue(month).id
            while waits("close_month"):
                self.flask("jobs", "tick", "--budget", "0.1")
            self.flask("jobs", "admin", "show", str(run_id))
            print(f"{db.session.query(Statement).count()} statements, one for each user.")

    def keep_to_the_rate(self) -> None:
        """Welcome all users at once, and show when each run began."""
        say("Rate", "The mail server takes two emails a second. All users are welcomed at once:")
        with self.app.app_context():
            users = select(User.id).where(User.is_staff.is_(False)).order_by(User.id)
            to = [{"user_id": user_id} for user_id in db.session.scalars(users)]
            run_ids = send_welcome.using(commit=True).enqueue_many(to)
            while waits("send_welcome"):
                self.flask("jobs", "tick")
            began = select(JobRun.started_at).where(JobRun.id.in_(run_ids))
            ordered = db.session.scalars(began.order_by(JobRun.started_at))
            times = [at for at in ordered if at is not None]
            for at in times:
                print(f"  begun after {(at - times[0]).total_seconds():.1f} s")

    def read_mail(self) -> None:
        """List the emails that arrived."""
        say("Mail", "What arrived. The retry sent only the email that had not been accepted.")
        for mail in self.mailbox.mails:
            print(f"  {mail['To']:<24} {mail['Subject']}")
        keys = [(mail["To"], mail["Subject"]) for mail in self.mailbox.mails]
        print(f"{len(keys)} emails, {len(keys) - len(set(keys))} of them twice.")

    def flask(self, *arguments: str) -> None:
        """Print a flask command, run it, and print its output."""
        print(f"$ flask {' '.join(arguments)}", flush=True)
        result = subprocess.run(
            [sys.executable, "-m", "flask", *arguments],
            cwd=ROOT, env=self.environment, text=True, capture_output=True,
        )  # fmt: skip
        print(result.stdout, end="")
        if result.returncode:
            sys.exit(f"{result.stderr}flask {' '.join(arguments)} ended with {result.returncode}.")


def put_back(period: timedelta) -> None:
    """Move ticks back by *period*, and each definition's next slot to its first slot since then."""
    since = datetime.now(timezone.utc) - period
    for definition in db.session.scalars(select(JobDefinition)):
        schedule = Schedule(definition.schedule, definition.timezone)
        definition.next_run_at = schedule.next_after(since)
    for tick in db.session.scalars(select(JobTick)):
        tick.started_at -= period
        tick.finished_at = tick.finished_at and tick.finished_at - period
    db.session.commit()


def waits(task: str) -> bool:
    """Return whether a run of *task* has not ended."""
    db.session.rollback()
    live = select(JobRun.id).where(JobRun.job_type == task, JobRun.finished_at.is_(None))
    return db.session.scalars(live).first() is not None


def failed_run(app: Flask) -> int:
    """Return the id of the run that failed and waits for its next attempt."""
    with app.app_context():
        return db.session.scalars(select(JobRun.id).where(JobRun.status == "failed")).one()


def post(client: FlaskClient, path: str, **form: str) -> None:
    """Send a form with the token that its page would have."""
    with client.session_transaction() as session:
        token = session.setdefault("csrf", "demo")
    answer = client.post(path, data={"csrf": token, **form})
    assert answer.status_code in (302, 303), answer.text


def farewell(url: str) -> None:
    """Print how to open the pages."""
    flask = Path(sys.executable).with_name("flask")
    short = flask.relative_to(ROOT) if flask.is_relative_to(ROOT) else flask
    say("Open the page", f"Log in as {sample.STAFF}, password: {PASSWORD}")
    print(f"  export FLASK_APP=example_app DATABASE_URL={url}")
    print(f"  {short} run          # then open http://127.0.0.1:5000/jobs/")
    print(f"  {short} jobs tick    # what cron does each minute; without ticks, the page turns red")


def say(title: str, text: str) -> None:
    """Print the title and text of a step."""
    print(f"\n== {title}\n{text}", flush=True)


def note(text: str) -> None:
    """Print something that happened without a command."""
    print(f"({text})", flush=True)


if __name__ == "__main__":
    main()
