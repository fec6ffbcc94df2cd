"""The names of the failpoints; `tests/process/test_failpoints.py` shows that each is reached."""

from __future__ import annotations

from tests.features import parts

POINTS = (
    "after-claim",
    "before-handler",
    "before-effect",
    "after-effect",
    "after-handler",
    "before-finalize",
    "after-finalize",
    "between-watermark-and-insert",
    "after-slots",
    "before-then",
    "after-then",
    "after-batch",
    "before-open",
    "before-step",
    "after-step",
    "before-each",
    "after-each",
    "before-sleep",
    "after-sleep",
    "before-wait",
    "after-wait",
    "between-signal-and-run",
    "before-send",
    "after-send",
    *(point for part in parts("kills") for point in part.POINTS),
)
