"""Which URLs are fetched at all, by their text alone."""

from typing import Any

import httpx
import pytest

from triptych.config import RouterSettings
from triptych.errors import ConfigError, InvalidMedia
from triptych.router.media.urls import HostList, MediaURLs

PROXY = {"media_proxy": "http://proxy.example:3128"}


def allows(patterns: list[str], host: str) -> bool:
    return HostList(patterns).allows(httpx.URL(f"http://{host}/a.png"))


def passes(url: str, **settings: Any) -> bool:
    try:
        MediaURLs(RouterSettings(**settings)).check(url)
    except InvalidMedia:
        return False
    return True


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("example.com", ["example.com", "EXAMPLE.com", "example.com."], ["a.example.com", "example.com.evil.net"]),
        (".example.com", ["example.com", "a.example.com", "b.a.example.com"], ["badexample.com", "example.com.a"]),
        ("*.example.com", ["a.example.com", "b.a.example.com"], ["example.com", "badexample.com"]),
        ("bücher.example", ["bücher.example", "xn--bcher-kva.example", "BÜCHER.example"], ["bucher.example"]),
        ("xn--bcher-kva.example", ["bücher.example"], ["a.bücher.example"]),
        ("192.0.2.7", ["192.0.2.7"], ["192.0.2.70", "1.192.0.2.7"]),
        ("2001:db8::1", ["[2001:db8::1]", "[2001:DB8::1]"], ["[2001:db8::2]"]),
    ],
)
def test_a_listed_host_and_what_it_covers_alone_is_let_through(
    pattern: str, inside: list[str], outside: list[str]
) -> None:
    assert [host for host in inside if not allows([pattern], host)] == []
    assert [host for host in outside if allows([pattern], host)] == []


def test_several_hosts_may_be_listed_and_an_empty_list_lets_everything_through() -> None:
    assert allows(["a.example", ".b.example"], "c.b.example")
    assert not allows(["a.example", ".b.example"], "c.example")
    assert allows([], "anything.example")


@pytest.mark.parametrize(
    "pattern", ["", "*", ".", "a.*.example", "http://a.example", "a.example/x", "u@a.example", "a b", "a.example:80"]
)
def test_what_is_no_host_is_refused_at_start(pattern: str) -> None:
    with pytest.raises(ConfigError, match="allow_media_hosts"):
        HostList([pattern])


def test_a_host_outside_the_list_reads_like_any_address_that_is_not_allowed() -> None:
    assert passes("http://a.example/", allow_media_hosts=("a.example",))
    assert not passes("http://b.example/", allow_media_hosts=("a.example",))
    assert not passes("http://a.example@b.example/", allow_media_hosts=("a.example",))


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "127.1",
            "10.0.0.1",
            "169.254.169.254",
            "127。0。0。1",
            "0",
        ),
        *("[::1]", "[::ffff:127.0.0.1]", "localhost", "a.localhost", "LOCALHOST."),
    ],
)
def test_a_proxy_is_not_asked_for_what_is_plainly_inside(host: str) -> None:
    assert not passes(f"http://{host}/a.png", **PROXY)


def test_with_a_proxy_names_public_addresses_and_usual_ports_go_through() -> None:
    assert passes("http://example.com/a.png", **PROXY)
    assert passes("https://8.8.8.8/a.png", **PROXY)
    assert not passes("http://example.com:8080/a.png", **PROXY)
    assert passes("http://example.com:8080/a.png", **PROXY, allow_media_ports=())
    assert passes("http://10.0.0.1:8080/a.png", **PROXY, allow_media_cidrs=("10.0.0.0/8",))
