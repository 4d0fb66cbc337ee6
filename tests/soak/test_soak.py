"""Three tiers under load for minutes: nothing that any process holds grows, and every claim is accounted for."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.soak import settling
from tests.soak.run import soak

SECONDS = float(os.environ.get("SOAK_SECONDS", "180"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + settling.MOST_SECONDS + 300)
def test_nothing_grows_under_load_and_every_claim_is_accounted_for(
    checkpoint_folders: dict[str, Path], tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    record = soak(str(checkpoint_folders["random"]), tmp_path, SECONDS)
    record_property("summary", record.summary())
    assert record.complaints() == []
    assert record.outcomes["answer: 200"] > SECONDS  # it was a load
