"""When there may be room again in a router that is full."""

_WEIGHT = 0.1  # of the latest request
LONGEST_SECONDS = 30.0


class Pace:
    """How long requests have taken lately."""

    def __init__(self) -> None:
        self._mean_seconds = 0.0

    def ended(self, seconds: float) -> None:
        if self._mean_seconds:
            self._mean_seconds += _WEIGHT * (seconds - self._mean_seconds)
        else:
            self._mean_seconds = seconds

    def seconds_until_room(self, num_running: int) -> float:
        """Until one of those in flight is likely to end; they are spread over the time that one takes."""
        return min(LONGEST_SECONDS, self._mean_seconds / max(1, num_running))
