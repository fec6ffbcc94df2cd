"""What a worker holds, and the two queues between its threads.

The inbox carries claims to the runner, the mailbox carries outcomes and words back to the keeper.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue

from ...current_run import CurrentRun, Word
from ...types import Claim, Outcome
from .runner import Told


class Hand:
    """The claims that a worker holds, from the claim until their outcome is recorded.

    :ivar held: all of them, by the run's id.
    :ivar outcomes: what the runner has come to and is not recorded yet.
    :ivar told: who spoke and was not answered yet.
    :ivar words: the last words of runs, by their ids, that are not written yet.
    :ivar woken: whether `wake` was called before the last `collect` returned.
    """

    def __init__(
        self,
        inbox: SimpleQueue[Claim | None],
        mailbox: SimpleQueue[Outcome | Told | None],
    ) -> None:
        self.held: dict[int, Claim] = {}
        self.outcomes: list[Outcome] = []
        self.told: list[Told] = []
        self.words: dict[int, tuple[Claim, Word]] = {}
        self.woken: bool = False
        self._inbox = inbox
        self._mailbox = mailbox

    @property
    def full(self) -> bool:
        """Whether anything is held, or not recorded."""
        return bool(self.held or self.outcomes)

    @property
    def idle(self) -> bool:
        """Whether all that is held has come to its outcome."""
        return self.held.keys() <= {outcome.id for outcome in self.outcomes}

    @property
    def waiting(self) -> int:
        """How many claims the runner has not begun."""
        return self._inbox.qsize()

    def collect(self, pause: float) -> None:
        """Wait up to *pause* seconds for the first word, then take all that came."""
        self.woken = False
        with suppress(Empty):
            item = self._mailbox.get(timeout=pause)
            while True:
                if isinstance(item, Outcome):
                    self.outcomes.append(item)
                elif item is None:
                    self.woken = True
                else:
                    self.told.append(item)
                item = self._mailbox.get_nowait()

    def note(self, run: CurrentRun) -> None:
        """Take the last word of *run*."""
        word = run.take_word()
        if word is not None and self.held.get(run.id) is run.claim:
            self.words[run.id] = (run.claim, word)

    def give(self, claims: Iterable[Claim]) -> None:
        """Give *claims* to the runner."""
        for claim in claims:
            self.held[claim.id] = claim
            self._inbox.put(claim)

    def take_back(self) -> list[Claim]:
        """Take from the inbox what the runner has not begun."""
        waiting: list[Claim] = []
        with suppress(Empty):
            while (claim := self._inbox.get_nowait()) is not None:
                waiting.append(claim)
        return waiting

    def give_back(self) -> int:
        """Take back what waits, to be released with its attempts not counted; how many."""
        waiting = self.take_back()
        self.outcomes += map(_released, waiting)
        return len(waiting)

    def give_all_back(self) -> None:
        """As `give_back`, and the run that the runner began or took, and left without an outcome.

        For a runner that has left: the keyboard interrupts it anywhere.
        """
        self.take_back()
        finished = {outcome.id for outcome in self.outcomes}
        self.outcomes += [_released(self.held[id_]) for id_ in self.held.keys() - finished]

    def let_go(self, outcome: Outcome) -> None:
        """Hold a run no more: its outcome is recorded, or its lease lost."""
        self.outcomes.remove(outcome)
        self.held.pop(outcome.id, None)
        self.words.pop(outcome.id, None)

    def wake(self) -> None:
        """Let `collect` return. May be called from any thread, and from a signal handler."""
        self._mailbox.put(None)

    def close(self) -> None:
        """Tell the runner that nothing more comes."""
        self._inbox.put(None)


def _released(claim: Claim) -> Outcome:
    return Outcome(claim.id, claim.token, "released", claim.attempt, claim.job_type)
