"""How many requests a server is given at a time, found while it works."""

from __future__ import annotations

from touche_llm.llm.concurrency import Slots

# Requests at a time at most: where the server's queue says how many it takes, and where it does not tell.
MOST_AT_ONCE, AT_ONCE_UNSEEN = 1024, 64
# At first the steps are large, until there were too many for the first time.
_FIRST, _FIRST_STEP, _STEP = 32, 16, 2
# So much of a queue is left: the engine then never waits for us. A share of the requests under way, and at least some.
_QUEUE_SHARE, _LEAST_QUEUE = 16, 4


class AdaptiveSlots(Slots):
    """Slots whose number follows what the server takes: additive increase, less where requests queue or are refused.

    It begins with 32. Each time the server's queue is looked at, there are 2 more if all are held, and 16 more until
    there were too many for the first time. Where more than a sixteenth of ours (and more than 4) wait in the queue,
    there are as many fewer as wait beyond that, but no less than half. A refusal halves them, once for all that were
    under way then.
    """

    def __init__(self, most: int) -> None:
        """There are never more than `most`, and no more than 64 before the queue was seen for the first time."""
        super().__init__(min(_FIRST, most))
        self._most_ever, self._ceiling, self._step = most, min(AT_ONCE_UNSEEN, most), _FIRST_STEP
        self._deaf = 0

    def look(self, waiting: int, running: int) -> None:
        """Take in how many requests wait in the server's queue and how many it works on; others may ask it too."""
        self._ceiling = self._most_ever
        total = waiting + running
        self._adapt(waiting * min(self.held_now, total) // total if total else 0)

    def look_away(self) -> None:
        """Take in that nothing can be seen of the queue."""
        if self._ceiling < self._most_ever:
            self._adapt(0)

    def _adapt(self, waiting: int) -> None:
        # After there became fewer, what was under way before has to end first.
        if self.held_now > self.most:
            return
        beyond = waiting - max(_LEAST_QUEUE, self.held_now // _QUEUE_SHARE)
        if beyond > 0:
            self._fewer(max(self.most - beyond, self.most // 2))
        elif self.held_now == self.most:
            self.resize(max(self.most, min(self.most + self._step, self._ceiling)))

    def refused(self) -> None:
        """Take in that the server refused a request since there are too many, or did not get round to it."""
        if not self._deaf:
            self._deaf = self.held_now
            self._fewer(self.most // 2)

    def _fewer(self, most: int) -> None:
        self._step = _STEP
        self.resize(max(most, 1))

    def _give_back(self) -> None:
        self._deaf = max(self._deaf - 1, 0)
        super()._give_back()
