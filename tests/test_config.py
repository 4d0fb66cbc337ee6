"""Settings check themselves, whoever makes them."""

import math

import pytest

from triptych.config import RouterSettings, TransferSettings
from triptych.errors import ConfigError


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_duration_that_no_clock_can_count_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(ConfigError, match=f"transfer.lease_seconds is {seconds}, expected above 0 and finite"):
        TransferSettings(lease_seconds=seconds)
    with pytest.raises(ConfigError, match=f"router.request_timeout_seconds is {seconds}"):
        RouterSettings(request_timeout_seconds=seconds)
