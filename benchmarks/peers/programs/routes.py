"""``flask routes``, which starts an app and does nothing. The option is the module of the app."""

from __future__ import annotations

import sys

from ..program import Program


class Routes(Program):
    """A command of Flask, to compare: any command costs at least as much."""

    def prepare(self) -> None:
        pass

    def work(self) -> None:
        from flask.cli import main

        sys.argv = ["flask", "--app", f"benchmarks.peers.programs.{self.option}", "routes"]
        main()


if __name__ == "__main__":
    Routes().main()
