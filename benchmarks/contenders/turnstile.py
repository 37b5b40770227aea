"""How a contender is timed: it plays rounds for ever, and passes here after each.

The first round warms it up. From then on a line with a number on standard input lets that many
rounds through, and their mean time goes out as a line of JSON. Before them comes one that does not
count: a contender that has waited for its turn may have lost its place in the caches.
"""

from __future__ import annotations

import json
import sys
import time


class Turnstile:
    def __init__(self) -> None:
        self._created = time.perf_counter()
        self._warm = False
        self._left = self._allowed = 0
        self._began = 0.0

    def passed(self) -> bool:
        """A round is done. Waits until the next may begin; False when there is none."""
        now = time.perf_counter()
        if self._left == self._allowed + 1:  # the round that does not count
            self._began = now
        if self._left > 1:
            self._left -= 1
            return True
        if self._warm:
            tell(seconds=(now - self._began) / self._allowed)
        else:
            self._warm = True
            tell(ready=now - self._created)
        line = sys.stdin.readline()
        if not line.strip():
            return False
        self._allowed = int(line)
        self._left = self._allowed + 1
        return True


def tell(**facts: object) -> None:
    sys.__stdout__.write("@" + json.dumps(facts) + "\n")
    sys.__stdout__.flush()
