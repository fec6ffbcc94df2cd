"""Flask-CronJobs: the commands that users run, with its defaults."""

from __future__ import annotations

import sys

from ..program import Program


class Ours(Program):
    """The app is in `ours_app`; the option is passed to ``flask jobs tick``.

    The option ``commit`` makes the enqueue commit; otherwise the session's commit follows.
    """

    def prepare(self) -> None:
        from flask_cronjobs.db.create import create_tables

        from .ours_app import app, db

        with app.app_context():
            create_tables(db.engine)

    def load(self) -> None:
        from .ours_app import app, db, noop

        with app.app_context():
            db.session.connection()
            with self.timed():
                for chunk in self.chunks():
                    noop.enqueue_many([{"number": number} for number in chunk])
                    db.session.commit()

    def work(self) -> None:
        self.flask("jobs", "tick", "--budget", "3600", *self.option.split())

    def enqueue(self) -> None:
        from .ours_app import app, db, noop

        with app.app_context():
            db.session.connection()
            if self.option == "commit":
                db.session.rollback()
                at_once = noop.using(commit=True)
                with self.timed():
                    for number in self.singly():
                        at_once.enqueue(number)
                return
            with self.timed():
                for number in self.singly():
                    noop.enqueue(number)
                    db.session.commit()

    def listen(self) -> None:
        self.flask("jobs", "work")

    def flask(self, *arguments: str) -> None:
        """Run a command of ``flask`` in this process."""
        from flask.cli import main

        sys.argv = ["flask", "--app", "benchmarks.peers.programs.ours_app", *arguments]
        main()


if __name__ == "__main__":
    Ours().main()
