"""One host: its cron starts one tick after the other, until the file that stops it is there.

A host has loaded the app once, and forks a process for each tick, so that there are many ticks; a
forked process runs the very command `flask jobs tick`.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from flask.cli import ScriptInfo

from tests.soak.app import create_app


def _sleep(seconds: float) -> None:
    """`time.sleep` for a faked clock.

    libfaketime takes the clock_nanosleep that Python sleeps by for one of a faked clock, even where
    it leaves the monotonic clock alone, and it then fails.
    """
    select.select([], [], [], seconds)


#: The exit code of a tick that did not end as a command should.
CRASHED = 70

if "FAKETIME" in os.environ:
    time.sleep = _sleep  # type: ignore[assignment]


def main() -> None:
    """Tick until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", type=Path, required=True)
    parser.add_argument("--codes", type=Path, required=True)
    options = parser.parse_args()
    nap = random.Random(options.seed)
    with options.codes.open("a", buffering=1) as codes:
        while not options.stop.exists():
            pid = os.fork()
            if pid == 0:
                _tick(options.workers)
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), file=codes)
            time.sleep(nap.uniform(0, 0.5))


def _tick(workers: int) -> NoReturn:
    code = CRASHED
    try:
        app = create_app()
        info = ScriptInfo(create_app=lambda: app)
        args = ["jobs", "tick", "--budget", "3", "--workers", str(workers)]
        app.cli.main(args, obj=info)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
