"""What fetched images may be kept for, and for how long: headers in, decisions out."""

import random

import pytest

from triptych.router.media.cache import MediaCache
from triptych.router.media.freshness import Freshness


def told(**headers: str) -> Freshness:
    return Freshness.of({name.replace("_", "-").encode(): value.encode() for name, value in headers.items()})


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"cache_control": "max-age=60"}, 60),
        ({"cache_control": "public, Max-Age=60"}, 60),
        ({"cache_control": 'max-age="60"'}, 60),
        ({"cache_control": "max-age=60, s-maxage=5"}, 5),  # several clients share this cache
        ({"cache_control": "max-age=60", "age": "50"}, 10),
        ({"cache_control": "max-age=60", "age": "70", "etag": '"x"'}, 0),
        ({"cache_control": "max-age=60, no-cache", "etag": '"x"'}, 0),
        ({"cache_control": "max-age=99999999999999999999", "etag": '"x"'}, 0),
        ({"cache_control": "max-age=9999999999"}, 365 * 86400),
        ({"cache_control": "max-age=-1", "etag": '"x"'}, 0),
        ({"cache_control": "max-age=60", "expires": "0", "date": "0"}, 60),
        ({"date": "Sun, 06 Nov 1994 08:49:37 GMT", "expires": "Sun, 06 Nov 1994 08:50:37 GMT"}, 60),
        ({"date": "Sun, 06 Nov 1994 08:49:37 GMT", "expires": "Sun, 06 Nov 1994 08:48:37 GMT", "etag": "x"}, 0),
        ({"date": "garbage", "expires": "0", "etag": '"x"'}, 0),
        ({"etag": '"x"'}, 0),  # no lifetime is made up
        ({"last_modified": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0),
    ],
)
def test_a_lifetime_is_what_the_headers_say(headers: dict[str, str], seconds: float) -> None:
    freshness = told(**headers)
    assert (freshness.may_keep, freshness.fresh_seconds) == (True, seconds)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"cache_control": "max-age=0"},
        {"cache_control": "no-store, max-age=60", "etag": '"x"'},
        {"cache_control": "private, max-age=60"},
        {"cache_control": 'private="x-field", max-age=60'},
        {"cache_control": "max-age=60", "vary": "*"},
        {"expires": "Sun, 06 Nov 1994 08:49:37 GMT"},
        {"etag": '"é"'},
        {"etag": '"' + "x" * 300 + '"'},
    ],
)
def test_what_is_forbidden_or_could_never_be_used_is_not_kept(headers: dict[str, str]) -> None:
    assert not told(**headers).may_keep


def test_validators_are_sent_back_as_they_came() -> None:
    both = told(etag='W/"a"', last_modified="Sun, 06 Nov 1994 08:49:37 GMT")
    assert both.conditions == (
        (b"If-None-Match", b'W/"a"'),
        (b"If-Modified-Since", b"Sun, 06 Nov 1994 08:49:37 GMT"),
    )
    assert told(cache_control="max-age=60").conditions == ()


def test_a_304_renews_what_it_speaks_of_and_leaves_the_rest() -> None:
    first = told(cache_control="max-age=60", etag='"a"')
    assert first.renewed({}) == first
    assert first.renewed({b"cache-control": b"max-age=5"}).fresh_seconds == 5
    assert first.renewed({b"etag": b'"b"'}).etag == b'"b"'
    assert not first.renewed({b"cache-control": b"no-store"}).may_keep


FRESH = Freshness(may_keep=True, fresh_seconds=10)
OVERHEAD = 1024 + len("a")


def test_a_body_is_fresh_for_its_time_and_then_still_there_to_be_asked_about() -> None:
    cache = MediaCache(1 << 20)
    cache.put("", "a", b"body", FRESH, now=100)
    kept = cache.find("", "a")
    assert kept is not None
    assert kept.data == b"body"
    assert kept.is_fresh(109.9)
    assert not kept.is_fresh(110)


def test_tenants_do_not_find_each_others_bodies() -> None:
    cache = MediaCache(1 << 20)
    cache.put("one", "a", b"body", FRESH, 0)
    assert cache.find("two", "a") is None
    assert cache.find("", "a") is None


def test_the_least_recently_used_goes_first() -> None:
    cache = MediaCache(3 * (OVERHEAD + 10))
    for url in "abc":
        cache.put("", url, bytes(10), FRESH, 0)
    cache.find("", "a")
    cache.put("", "d", bytes(10), FRESH, 0)
    assert [url for url in "abcd" if cache.find("", url)] == ["a", "c", "d"]


def test_a_newer_body_takes_the_place_of_the_old_one_or_only_its_place() -> None:
    cache = MediaCache(1 << 20)
    cache.put("", "a", b"old", FRESH, 0)
    cache.put("", "a", b"newer", FRESH, 0)
    kept = cache.find("", "a")
    assert kept is not None
    assert kept.data == b"newer"
    cache.put("", "a", b"secret", Freshness(may_keep=False, fresh_seconds=10), 0)
    assert cache.find("", "a") is None
    assert cache.held_bytes == 0


def test_what_does_not_fit_is_not_kept_and_nothing_makes_room_for_it() -> None:
    cache = MediaCache(2 * OVERHEAD)
    cache.put("", "a", b"x", FRESH, 0)
    cache.put("", "b", bytes(2 * OVERHEAD), FRESH, 0)
    assert cache.find("", "a") is not None
    off = MediaCache(0)
    off.put("", "a", b"", FRESH, 0)
    assert off.find("", "a") is None


@pytest.mark.parametrize("seed", range(5))
def test_bytes_are_counted_right_through_any_history(seed: int) -> None:
    rng = random.Random(seed)
    told_bytes: list[int] = []
    cache = MediaCache(20_000, told_bytes.append)
    for _ in range(500):
        freshness = Freshness(rng.random() < 0.8, 10)
        cache.put(rng.choice("xy"), rng.choice("abcdefgh"), bytes(rng.randrange(6000)), freshness, 0)
        found = [(url, kept) for tenant in "xy" for url in "abcdefgh" if (kept := cache.find(tenant, url))]
        assert cache.held_bytes == told_bytes[-1] == sum(len(kept.data) + OVERHEAD for _, kept in found) <= 20_000
