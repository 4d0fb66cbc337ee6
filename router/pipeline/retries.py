"""When a stage is tried again: once per stage and request, and rarely, so that retries never feed an overload."""

from triptych.errors import Draining, NoWorker, Overloaded, TriptychError
from triptych.journey import Role
from triptych.metrics import RouterMetrics

MOST_CREDIT = 100.0  # all that one dying worker may have held
CREDIT_PER_REQUEST = 0.1
MOST_MOVES = 8  # of one request, from workers that were asked when they had begun to drain


class RetryBudget:
    """Lets about one retry pass for ten requests, with a reserve for the moment a worker dies."""

    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics
        self._credit = MOST_CREDIT

    @property
    def room(self) -> float:
        """Retries that may be made at once."""
        return self._credit

    def earn(self) -> None:
        """A request has come in."""
        self._credit = min(MOST_CREDIT, self._credit + CREDIT_PER_REQUEST)

    def spend(self, stage: str) -> bool:
        if self._credit < 1:
            return False
        self._credit -= 1
        self._metrics.count("triptych:retries_total", stage=stage)
        return True


class Retries:
    """One request's share of it."""

    def __init__(self, budget: RetryBudget) -> None:
        budget.earn()
        self._budget = budget
        self._spent: set[Role] = set()
        self._moves = 0

    def allow(self, stage: Role, error: TriptychError) -> bool:
        """Whether this failure of this stage is worth another try; a yes is spent.

        One that drains has done nothing yet, and is not asked again: going elsewhere costs no retry.
        """
        if isinstance(error, Draining):
            self._moves += 1
            return self._moves <= MOST_MOVES
        if not error.retryable or isinstance(error, NoWorker | Overloaded) or stage in self._spent:
            return False
        self._spent.add(stage)
        return self._budget.spend(stage)
