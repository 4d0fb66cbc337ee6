"""Settings check themselves, whoever makes them."""

import math

import pytest

from triptych.config import RouterSettings, ServeSettings, TransferSettings
from triptych.errors import ConfigError


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_duration_that_no_clock_can_count_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(ConfigError, match=f"transfer.lease_seconds is {seconds}, expected above 0 and finite"):
        TransferSettings(lease_seconds=seconds)
    with pytest.raises(ConfigError, match=f"router.request_timeout_seconds is {seconds}"):
        RouterSettings(request_timeout_seconds=seconds)


def test_fewer_threads_than_none_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"serve.cpu_threads is -2, expected 0 \(the default\) or more"):
        ServeSettings(cpu_threads=-2)
