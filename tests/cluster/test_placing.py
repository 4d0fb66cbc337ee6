"""What workers ask of Ray."""

import pytest

from triptych.cluster.placing import gpus_of, require_room, resources_of
from triptych.config import ServeSettings, load_settings
from triptych.errors import ConfigError
from triptych.journey import Role

ONE_OF_EACH = {"encode": 1, "prefill": 1, "decode": 1}


def test_a_pinned_worker_asks_for_a_place_of_each_of_its_roles() -> None:
    pinned = ServeSettings(pin_tiers=True)
    assert resources_of({Role.ENCODE}, pinned) == {"triptych_encode": 1.0}
    assert resources_of({Role.DECODE, Role.PREFILL}, pinned) == {"triptych_decode": 1.0, "triptych_prefill": 1.0}


def test_a_worker_that_is_not_pinned_goes_anywhere() -> None:
    assert resources_of({Role.ENCODE}, ServeSettings()) == {}


@pytest.mark.parametrize(("available", "gpus"), [(1, 0.333), (3, 1.0), (8, 2.0), (0, 0.0)])
def test_workers_share_the_gpus_that_are_there(available: float, gpus: float) -> None:
    assert gpus_of(ServeSettings(), available, ONE_OF_EACH) == dict.fromkeys(ONE_OF_EACH, gpus)


def test_a_role_has_the_share_that_settings_give_it_and_the_others_share_what_is_left() -> None:
    shares = ServeSettings(gpu_shares=("encode=0.2", "decode=0.5"))
    assert gpus_of(shares, 1, ONE_OF_EACH) == {"encode": 0.2, "prefill": 0.3, "decode": 0.5}
    assert gpus_of(shares, 2, {"encode": 2, "prefill": 1, "decode": 2}) == {
        "encode": 0.2,
        "prefill": 0.6,
        "decode": 0.5,
    }
    together = ServeSettings(topology="ep+d", gpu_shares=("prefill=0.4", "encode=0.4"))
    assert gpus_of(together, 1, {"ep": 1, "decode": 1}) == {"ep": 0.4, "decode": 0.6}


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        (("vision=0.5",), "serve.gpu_shares: 'vision' is no role of topology"),
        (("encode=0.5", "decode=0.5"), "take 1 of 1 GPUs, which leaves nothing for 1 other workers"),
        (("encode=0.2", "encode=0.3"), "two shares for encode, 0.2 and 0.3"),
    ],
)
def test_shares_that_cannot_be_are_refused(shares: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        gpus_of(ServeSettings(gpu_shares=shares), 1, ONE_OF_EACH)


def test_more_gpus_than_there_will_ever_be_are_refused_at_once() -> None:
    require_room({"encode": 0.333, "decode": 0.333}, {"encode": 1, "decode": 2}, 1)
    with pytest.raises(
        ConfigError, match=r"ask for 1.3 GPUs \(1 x 0.3 for encode, 2 x 0.5 for decode\), and there are 1"
    ):
        require_room({"encode": 0.3, "decode": 0.5}, {"encode": 1, "decode": 2}, 1)


@pytest.mark.parametrize("entry", ["encode", "encode=", "=0.5", "encode=0", "encode=1.5", "encode=nan", "encode=x"])
def test_what_is_no_share_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="expected ROLE=SHARE"):
        ServeSettings(gpu_shares=(entry,))


def test_workers_on_the_cpu_ask_for_no_gpu() -> None:
    assert gpus_of(ServeSettings(device="cpu", gpus_per_worker=1.0), 8, ONE_OF_EACH) == dict.fromkeys(ONE_OF_EACH, 0.0)


def test_what_settings_say_counts_also_while_no_gpu_is_there() -> None:
    """An autoscaler adds nodes for what waits, so the share must not depend on what there is."""
    asked = gpus_of(ServeSettings(device="cuda", gpus_per_worker=1.0), 0, ONE_OF_EACH)
    assert asked == dict.fromkeys(ONE_OF_EACH, 1.0)


def test_gpus_that_are_asked_for_and_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="Ray sees no GPU"):
        gpus_of(ServeSettings(device="cuda"), 0, ONE_OF_EACH)


@pytest.mark.parametrize("value", ["-0.5", "1.5", "nan", "inf"])
def test_a_share_that_ray_cannot_place_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"serve\.gpus_per_worker"):
        load_settings(environment={"TRIPTYCH_SERVE_GPUS_PER_WORKER": value})
