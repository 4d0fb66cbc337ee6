"""What workers ask of Ray."""

import pytest

from triptych.cluster.placing import gpus_of, resources_of
from triptych.config import ServeSettings, load_settings
from triptych.errors import ConfigError
from triptych.journey import Role


def test_a_pinned_worker_asks_for_a_place_of_each_of_its_roles() -> None:
    pinned = ServeSettings(pin_tiers=True)
    assert resources_of({Role.ENCODE}, pinned) == {"triptych_encode": 1.0}
    assert resources_of({Role.DECODE, Role.PREFILL}, pinned) == {"triptych_decode": 1.0, "triptych_prefill": 1.0}


def test_a_worker_that_is_not_pinned_goes_anywhere() -> None:
    assert resources_of({Role.ENCODE}, ServeSettings()) == {}


@pytest.mark.parametrize(("available", "num_workers", "gpus"), [(1, 3, 0.333), (3, 3, 1.0), (8, 3, 2.0), (0, 3, 0.0)])
def test_workers_share_the_gpus_that_are_there(available: float, num_workers: int, gpus: float) -> None:
    assert gpus_of(ServeSettings(), available, num_workers) == gpus


def test_workers_on_the_cpu_ask_for_no_gpu() -> None:
    assert gpus_of(ServeSettings(device="cpu", gpus_per_worker=1.0), 8, 3) == 0.0


def test_what_settings_say_counts_also_while_no_gpu_is_there() -> None:
    """An autoscaler adds nodes for what waits, so the share must not depend on what there is."""
    assert gpus_of(ServeSettings(device="cuda", gpus_per_worker=1.0), 0, 3) == 1.0


def test_gpus_that_are_asked_for_and_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="Ray sees no GPU"):
        gpus_of(ServeSettings(device="cuda"), 0, 3)


@pytest.mark.parametrize("value", ["-0.5", "1.5", "nan", "inf"])
def test_a_share_that_ray_cannot_place_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"serve\.gpus_per_worker"):
        load_settings(environment={"TRIPTYCH_SERVE_GPUS_PER_WORKER": value})
