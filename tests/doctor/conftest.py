"""What tests of the doctor share."""

import pytest

from triptych.config import load_settings
from triptych.doctor.finding import Asked


@pytest.fixture
def asked_with_lists() -> Asked:
    flags = {"router.allow_media_cidrs": ("10.0.0.0/8",), "transfer.transports": ("shm", "nixl"), "router.port": 1}
    return Asked(load_settings(environment={}, flags=flags), "http://there:8000")
