import itertools
from typing import Any

import pytest
from blake3 import blake3

from triptych.errors import InvalidRecord, InvalidRequest
from triptych.multimodal import digest as digests
from triptych.multimodal.digest import OptionValue, digests_with_ids, encode_canonical, item_digest, source_digest

SOURCE, FINGERPRINT = b"s" * 32, b"f" * 32


def test_a_source_digest_is_the_blake3_of_its_bytes() -> None:
    assert source_digest(b"picture") == blake3(b"picture").digest()


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (300, "03 02 01 2c"),
        (0, "03 01 00"),
        (127, "03 01 7f"),
        (128, "03 02 00 80"),
        (-1, "03 01 ff"),
        (True, "05 01"),
        (1.0, "04 3f f0 00 00 00 00 00 00"),
        ("ab", "01 00 00 00 00 00 00 00 02 61 62"),
        (b"ab", "02 00 00 00 00 00 00 00 02 61 62"),
        ([], "20 00 00 00 00 00 00 00 00"),
        ({"a": 0}, "22 00 00 00 00 00 00 00 01 01 00 00 00 00 00 00 00 01 61 03 01 00"),
    ],
)
def test_values_are_encoded_as_written_down(value: OptionValue, encoded: str) -> None:
    assert encode_canonical(value) == bytes.fromhex(encoded)


def test_values_that_differ_never_share_an_encoding() -> None:
    values: list[OptionValue] = [True, 1, 1.0, "1", b"1", 0, False, 0.0, "", b"", [], {}]
    values += [["ab", "c"], ["a", "bc"], [["ab"], "c"], ["abc"], {"a": "b"}, {"ab": ""}, [["a"]], 256, -256, 255]
    for one, other in itertools.combinations(values, 2):
        assert encode_canonical(one) != encode_canonical(other)


def test_a_tuple_is_a_list_and_the_order_of_keys_does_not_matter() -> None:
    assert encode_canonical((1, "x")) == encode_canonical([1, "x"])
    assert encode_canonical({"a": 1, "b": 2}) == encode_canonical({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [object(), None, {1: 2}, 1 << 2040, {"a": {"b": {3}}}, "\ud800", {"\udfff": 1}])
def test_a_value_without_an_encoding_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRecord):
        encode_canonical(value)


def test_an_item_is_named_by_source_options_fingerprint_and_salt() -> None:
    base = item_digest(SOURCE, {"max_pixels": 100}, FINGERPRINT)
    others = [
        item_digest(b"t" * 32, {"max_pixels": 100}, FINGERPRINT),
        item_digest(SOURCE, {"max_pixels": 101}, FINGERPRINT),
        item_digest(SOURCE, {"min_pixels": 100}, FINGERPRINT),
        item_digest(SOURCE, {}, FINGERPRINT),
        item_digest(SOURCE, {"max_pixels": 100}, b"g" * 32),
        item_digest(SOURCE, {"max_pixels": 100}, FINGERPRINT, salt=b"tenant"),
        item_digest(FINGERPRINT, {"max_pixels": 100}, SOURCE),
    ]
    assert len({base, *others}) == 8
    assert base == item_digest(SOURCE, {"max_pixels": 100}, FINGERPRINT, b"")
    assert len(base) == 32


def test_an_item_digest_does_not_change_between_releases() -> None:
    # Rows outlive a rolling update: change ITEM_DOMAIN's version when this has to change.
    digest = item_digest(SOURCE, {"min_pixels": 3136, "max_pixels": 1003520}, FINGERPRINT, b"salt")
    assert digest.hex() == "1e5d77ffdc20e5ba09de7399309f88bd8865daa75a697c763edf577c4d38864c"


def test_another_version_of_the_domain_names_everything_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = item_digest(SOURCE, {}, FINGERPRINT)
    monkeypatch.setattr(digests, "ITEM_DOMAIN", "triptych.item.v2")
    assert item_digest(SOURCE, {}, FINGERPRINT) != before


def test_options_are_the_same_in_any_order_and_refused_without_an_encoding() -> None:
    one = item_digest(SOURCE, {"min_pixels": 1, "max_pixels": 2}, FINGERPRINT)
    assert one == item_digest(SOURCE, {"max_pixels": 2, "min_pixels": 1}, FINGERPRINT)
    with pytest.raises(InvalidRecord, match="type object"):
        item_digest(SOURCE, {"x": object()}, FINGERPRINT)  # type: ignore[dict-item]


def test_a_clients_id_is_mixed_in_and_never_replaces_the_content() -> None:
    plain = item_digest(SOURCE, {}, FINGERPRINT)
    named = item_digest(SOURCE, {}, FINGERPRINT, client_id="a")
    others = [
        item_digest(SOURCE, {}, FINGERPRINT, client_id="b"),
        item_digest(b"t" * 32, {}, FINGERPRINT, client_id="a"),
        item_digest(SOURCE, {}, FINGERPRINT, b"tenant", "a"),
        item_digest(SOURCE, {}, FINGERPRINT, b"a"),
    ]
    assert len({plain, named, *others}) == 6
    assert plain == item_digest(SOURCE, {}, FINGERPRINT, client_id="")
    assert digests_with_ids([plain, plain, plain], ["a", None, ""]) == (named, plain, plain)


def test_another_number_of_ids_than_items_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidRequest, match="2 items came with 1 ids"):
        digests_with_ids([SOURCE, SOURCE], ["a"])


@pytest.mark.parametrize(("source", "fingerprint"), [(b"", FINGERPRINT), (SOURCE, b"short")])
def test_digests_of_another_length_are_refused(source: bytes, fingerprint: bytes) -> None:
    with pytest.raises(InvalidRecord, match="expected 32"):
        item_digest(source, {}, fingerprint)
