"""How many requests a server is given at a time, found while it works."""

from __future__ import annotations

from touche_llm.llm.concurrency import Slots

# Requests at a time at most where the server's queue says how many it takes, and always where it does not tell.
MOST_AT_ONCE, AT_ONCE_UNSEEN = 1024, 64
# At first the steps are large, until there were too many for the first time.
_FIRST, _FIRST_STEP, _STEP = 32, 16, 2
# So much of a queue is left: the engine then never waits for us. A share of the requests under way, and at least some.
_QUEUE_SHARE, _LEAST_QUEUE = 16, 4


class AdaptiveSlots(Slots):
    """Slots whose number follows what the server takes: additive increase, less where requests queue or are refused.

    It begins with 32. Each time the server's queue is looked at, there are 2 more if all are held, and 16 more until
    there were too many for the first time. Where more than a sixteenth of the requests (and more than 4) wait in the
    queue, there are as many fewer as wait beyond that, but no less than half. A refusal halves them, once for all that
    were under way then.
    """

    def __init__(self, most: int) -> None:
        """There are never more than `most`."""
        super().__init__(min(_FIRST, most))
        self._ceiling, self._step = most, _FIRST_STEP
        self._deaf = 0

    def look(self, waiting: int) -> None:
        """Take in how many requests wait in the server's queue."""
        # After there became fewer, what was under way before has to end first.
        if self.held_now > self.most:
            return
        beyond = waiting - max(_LEAST_QUEUE, self.held_now // _QUEUE_SHARE)
        if beyond > 0:
            self._fewer(max(self.most - beyond, self.most // 2))
        elif self.held_now == self.most:
            self.resize(min(self.most + self._step, self._ceiling))

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
