"""Settings check themselves, whoever makes them."""

import json
import math
import re
from pathlib import Path

import pytest

from triptych.config import RouterSettings, ServeSettings, TransferSettings, load_settings, settings_as_values
from triptych.config.addresses import host_and_port
from triptych.errors import ConfigError


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_duration_that_no_clock_can_count_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(ConfigError, match=f"transfer.lease_seconds is {seconds}, expected above 0 and finite"):
        TransferSettings(lease_seconds=seconds)
    with pytest.raises(ConfigError, match=f"router.request_timeout_seconds is {seconds}"):
        RouterSettings(request_timeout_seconds=seconds)


@pytest.mark.parametrize("name", ["router.port", "encoder.arena_bytes"])
def test_a_whole_number_without_end_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is inf, expected int"):
        load_settings(environment={}, flags={name: math.inf})


def test_fewer_threads_than_none_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"serve.cpu_threads is -2, expected 0 \(the default\) or more"):
        ServeSettings(cpu_threads=-2)


@pytest.mark.parametrize("seconds", [1e-9, 1e300])
def test_a_duration_that_no_timer_or_message_can_count_is_refused_by_name(seconds: float) -> None:
    wanted = re.escape(f"is {seconds}, expected 0.001 to 86400")
    with pytest.raises(ConfigError, match=f"transfer.lease_seconds {wanted}"):
        TransferSettings(lease_seconds=seconds)
    with pytest.raises(ConfigError, match=f"transfer.sweep_interval_seconds {wanted}"):
        TransferSettings(sweep_interval_seconds=seconds)
    with pytest.raises(ConfigError, match=f"transfer.copy_timeout_seconds {wanted}"):
        TransferSettings(copy_timeout_seconds=seconds)


def test_no_transport_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"transfer.transports is \(\), expected one of them at least"):
        TransferSettings(transports=())


@pytest.mark.parametrize("num_bytes", [1, 4096, 8191])
def test_a_window_without_two_halves_is_refused(num_bytes: int) -> None:
    with pytest.raises(ConfigError, match=rf"nixl_window_bytes is {num_bytes}, expected 0 \(the default\) or at"):
        TransferSettings(nixl_window_bytes=num_bytes)


@pytest.mark.parametrize("name", ["weights", "kv_dtype"])
def test_a_precision_that_is_not_known_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"language\.{name} is 'int4', expected one of auto, fp8"):
        load_settings(environment={}, flags={f"language.{name}": "int4"})


def test_the_admin_port_is_another_than_the_public_one() -> None:
    with pytest.raises(ConfigError, match=r"router\.admin_port is 8000"):
        RouterSettings(admin_port=8000)
    assert RouterSettings(admin_port=8000, host="0.0.0.0", admin_host="10.0.0.1").admin_port == 8000


@pytest.mark.parametrize("name", ["serve.cluster_secret", "router.api_key", "router.api_keys", "router.media_proxy"])
def test_a_secret_of_a_wrong_type_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)) as caught:
        load_settings(environment={}, flags={name: 31337})
    assert "31337" not in str(caught.value)
    assert "31337" not in repr(load_settings(environment={}, flags={name: "31337" * 10}))


def test_classes_of_service_are_tables_of_a_file_and_travel_to_other_processes(tmp_path: Path) -> None:
    file = tmp_path / "triptych.toml"
    file.write_text('[slo]\ndefault = "gold"\n[[slo.classes]]\nname = "gold"\nttft_seconds = 1\ntarget = 0.9\n')
    settings = load_settings(file, environment={})
    assert [(each.name, each.ttft_seconds, each.target) for each in settings.slo.classes] == [("gold", 1.0, 0.9)]
    told = json.loads(json.dumps(settings_as_values(settings)))
    assert load_settings(environment={}, flags=told) == settings


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ('name = "gold"', "limits is 'none'"),
        ('name = "Gold"\nttft_seconds = 1', "name is 'Gold'"),
        ("ttft_seconds = 1", "lacks name"),
        ('name = "gold"\nttft = 1', "unknown setting 'ttft'"),
        ('name = "gold"\nttft_seconds = "soon"', "slo.classes.ttft_seconds is 'soon', expected float"),
        ('name = "gold"\nttft_seconds = 1\ntarget = 1', "target is 1.0"),
        ('name = "gold"\ne2e_seconds = 1', "slo.default is 'interactive', expected one of gold"),
        ('name = "gold"\ne2e_seconds = 1\n[[slo.classes]]\nname = "gold"\ne2e_seconds = 1', "every name once"),
    ],
)
def test_a_class_of_service_that_cannot_be_meant_is_refused(tables: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "triptych.toml"
    file.write_text(f"[[slo.classes]]\n{tables}\n")
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_settings(file, environment={})


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'[serve]\nserved_name = "\xff"\n', "no UTF-8: invalid start byte at byte 23"),
        (b"[serve]\nencoders = " + 5000 * b"9", "no TOML that can be meant: Exceeds the limit"),
        (b"a = " + 5000 * b"[" + 5000 * b"]", "no TOML that can be meant: maximum recursion depth"),
        (b"[serve", "no TOML"),
        (None, "Is a directory"),
    ],
)
def test_a_file_of_settings_that_cannot_be_meant_is_refused_by_its_name(
    data: bytes | None, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.mkdir() if data is None else file.write_bytes(data)
    with pytest.raises(ConfigError, match=f"cannot read settings from {re.escape(str(file))}: .*{told}"):
        load_settings(file, environment={})


def test_a_file_of_settings_may_begin_as_some_editors_begin_it(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(b"\xef\xbb\xbf[serve]\r\nencoders = 2\r\n")
    assert load_settings(file, environment={}).serve.encoders == 2


@pytest.mark.parametrize("host", ["", " "])
def test_no_host_is_not_every_address(host: str) -> None:
    for name in ("host", "admin_host"):
        with pytest.raises(ConfigError, match=f"router.{name} is '{host}', expected an address, or a name"):
            load_settings(environment={f"TRIPTYCH_ROUTER_{name.upper()}": host})


def test_more_routers_than_a_machine_bears_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"serve.routers is 1000000, expected at most 256"):
        ServeSettings(routers=1_000_000)


@pytest.mark.parametrize(("host", "told"), [("::1", "[::1]:80"), ("127.0.0.1", "127.0.0.1:80"), ("gpu-3", "gpu-3:80")])
def test_an_address_that_is_told_can_be_opened(host: str, told: str) -> None:
    assert host_and_port(host, 80) == told
