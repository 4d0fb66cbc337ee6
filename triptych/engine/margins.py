"""How long answers will be, told from how long they were: what to reserve behind a prompt before it is decoded.

Too little, and sequences that run together run out of blocks; too much, and fewer of them run. What a deployment is
asked resembles what it was asked a while ago: the Past-Future scheduler (R. Gong et al., ASPLOS 2025) predicts from
past lengths, too. It works out the peak of all that run; here a newcomer gets a quantile of the last few hundred.
"""

from bisect import bisect_left, insort
from collections import deque

UNKNOWN_TOKENS = 512  # until there is anything to tell from
LEAST_ANSWERS = 16  # to tell anything from
REMEMBERED_ANSWERS = 512
SHARE = 0.75  # of answers that end within what was reserved for them


class AnswerLengths:
    """The lengths of recent answers, in tokens; both methods cost microseconds."""

    def __init__(self, fixed: int = 0) -> None:
        """fixed: tokens that everybody gets, whatever was said; 0: as many as the quantile says"""
        self._fixed = fixed
        self._recent: deque[int] = deque()  # in order of ending
        self._sorted: list[int] = []

    def record(self, num_tokens: int) -> None:
        """An answer has ended by itself."""
        self._recent.append(num_tokens)
        insort(self._sorted, num_tokens)
        if len(self._recent) > REMEMBERED_ANSWERS:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def margin(self) -> int:
        """Tokens to reserve for an answer, at least one."""
        if self._fixed:
            return self._fixed
        if len(self._sorted) < LEAST_ANSWERS:
            return UNKNOWN_TOKENS
        return max(1, self._sorted[min(len(self._sorted) - 1, int(SHARE * len(self._sorted)))])
