"""Block keys: equal where KV is equal, different wherever anything differs that KV is computed from."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.engine.books import BLOCK_SIZE, cached
from tests.multimodal.parts import image, masked, random_parts, text
from triptych.engine.block_keys import BlockKeys, KnownKeys, computed_keys, root_key
from triptych.errors import InvalidRecord
from triptych.journey import Grid, Modality, Run
from triptych.multimodal.layout import ItemPart, TextPart, lay_out

Parts = Sequence[TextPart | ItemPart]


def keys(parts: Parts, generated: tuple[int, ...] = (), root: bytes = b"root", block_size: int = 4) -> list[bytes]:
    layout = lay_out(parts)
    made = BlockKeys(layout, generated, block_size, root)
    return [made[place] for place in range(len(made))]


def common(first: list[bytes], second: list[bytes]) -> int:
    """Keys they have in common from the start; behind those they must have none."""
    same = [a == b for a, b in zip(first, second, strict=False)]
    length = same.index(False) if False in same else len(same)
    assert not set(first[length:]) & set(second[length:])
    return length


def test_equal_prompts_have_equal_keys_and_only_full_blocks_have_one() -> None:
    parts = [text(5), image(2, 2), text(6)]
    assert keys(parts) == keys(parts)
    assert len(keys(parts)) == 15 // 4
    assert len(set(keys(parts))) == 3


def test_a_longer_prompt_begins_with_the_keys_of_the_shorter() -> None:
    assert common(keys([text(8)]), keys([text(19)])) == 2


def test_generated_tokens_are_keyed_as_the_same_text_in_the_prompt() -> None:
    """A continuation, or the next turn of a conversation, finds what came before."""
    whole = [text(5), image(2, 2), TextPart(tuple(range(50, 61)))]
    assert keys([text(5), image(2, 2), TextPart((50, 51))], generated=tuple(range(52, 61))) == keys(whole)


def test_a_key_depends_on_every_token_before_it() -> None:
    for place in range(12):
        ids = [1] * 12
        ids[place] = 2
        assert common(keys([TextPart((1,) * 12)]), keys([TextPart(tuple(ids))])) == place // 4


FIRST = image(2, 2, media=1)
OTHERS = {
    "another image, or one pixel or option of it": replace(FIRST, digest=bytes([2]) * 32),
    "another modality": replace(FIRST, modality=Modality.VIDEO),
    "another grid": replace(FIRST, grid=Grid(1, 2, 8)),
    "another size": replace(FIRST, width=57),
    "other rope steps": replace(FIRST, rope_grid=None),
    "an atomic span": replace(FIRST, atomic=True),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_the_same_tokens_with_another_image_share_only_what_lies_before_it(other: ItemPart) -> None:
    before, after = text(8), text(9)
    assert common(keys([before, FIRST, after]), keys([before, other, after])) == 2


def test_an_image_in_another_place_is_another_prompt() -> None:
    same_ids = TextPart((7,) * 4)  # as the placeholders look
    assert common(keys([text(8), FIRST, same_ids]), keys([text(8), same_ids, FIRST])) == 2
    assert common(keys([text(8), FIRST]), keys([text(8), same_ids])) == 2


def test_two_images_in_another_order_share_nothing_behind_the_text() -> None:
    second = image(2, 2, media=2)
    assert common(keys([text(4), FIRST, second]), keys([text(4), second, FIRST])) == 1


def test_rows_on_other_positions_of_the_same_tokens_are_told_apart() -> None:
    """Ids, rope positions and digest agree: only the mask says which token is a row."""
    one, two = masked((True, True, False, True)), masked((True, False, True, True))
    one, two = (replace(part, span_token_ids=(7,) * 4) for part in (one, two))
    assert common(keys([text(4), one, text(4)]), keys([text(4), two, text(4)])) == 1


def test_an_image_that_begins_in_one_block_and_ends_in_another_is_told_by_its_row_range() -> None:
    long = image(3, 3, media=1)
    shifted = keys([text(4), long, text(3)]), keys([text(5), long, text(2)])
    assert common(*shifted) == 1


@pytest.mark.parametrize(
    "other",
    [root_key(b"model", b"salt"), root_key(b"other", b""), root_key(b"model", b"", "adapter"), root_key(b"mode", b"l")],
)
def test_another_model_tenant_or_adapter_shares_nothing(other: bytes) -> None:
    mine = root_key(b"model", b"")
    assert common(keys([text(12)], root=mine), keys([text(12)], root=other)) == 0


def test_another_block_size_shares_nothing() -> None:
    assert not set(keys([text(16)], block_size=4)) & set(keys([text(16)], block_size=8))


def test_keys_are_computed_only_as_far_as_they_are_asked_for() -> None:
    layout = lay_out([text(400), image(4, 4), text(400)])
    made = BlockKeys(layout, (), 4, b"root")
    assert made[3] == keys([text(16)])[3]
    assert len(made._keys) == 4
    for place in (-1, len(made)):
        with pytest.raises(IndexError):
            made[place]


@pytest.mark.parametrize("seed", range(40))
def test_keys_do_not_depend_on_the_order_in_which_they_are_asked_for(seed: int) -> None:
    rng = random.Random(seed)
    parts = [*random_parts(seed), text(rng.randrange(300))]
    generated = tuple(range(rng.randrange(30)))
    mine = cached(0, parts, generated).keys
    assert mine is not None
    places = list(range(len(mine)))
    rng.shuffle(places)
    assert {place: mine[place] for place in places} == dict(
        enumerate(keys(parts, generated, root_key(b"model", b""), BLOCK_SIZE))
    )


@pytest.mark.parametrize("seed", range(60))
def test_two_random_prompts_share_exactly_the_blocks_whose_tokens_and_rows_agree(seed: int) -> None:
    rng = random.Random(seed)
    first = random_parts(rng.randrange(1000))
    second = [replace(part, digest=bytes([9]) * 32) if isinstance(part, ItemPart) and rng.random() < 0.3 else part
              for part in first[: rng.randrange(len(first)) + 1]]  # fmt: skip
    described = [describe(parts) for parts in (first, second)]
    same = 0
    while (same + 1) * 4 <= min(map(len, described)) and described[0][: same * 4 + 4] == described[1][: same * 4 + 4]:
        same += 1
    assert common(keys(first), keys(second)) == same


def describe(parts: Parts) -> list[tuple[object, ...]]:
    """What each position is, by plain counting."""
    out: list[tuple[object, ...]] = []
    position = 0
    for part in parts:
        if isinstance(part, TextPart):
            out += [(position, id) for id in part.token_ids]
            position += len(part.token_ids)
            continue
        row = 0
        for offset, taken in enumerate(part.embed_mask):
            facts = (part.digest, part.grid, part.width, part.height, part.atomic, part.rope_grid)
            place = (row, len(part.embed_mask), offset)
            out.append(
                (position, *facts, *place) if taken else (position, part.atomic, part.span_token_ids[offset], *place)
            )
            row += taken
        position += len(part.embed_mask)
    return out


LONG = [text(3000), image(40, 40, media=1), text(900)]  # of 32 blocks, 128 tokens, keys are known together


def all_keys(parts: Parts, known: KnownKeys | None, salt: bytes = b"") -> list[bytes]:
    made = computed_keys(b"model", lay_out(parts), (), salt, 4, known)
    return [made[place] for place in range(len(made))]


@pytest.mark.parametrize(
    "other",
    [
        LONG,
        [*LONG, text(500)],
        [text(3000), image(40, 40, media=2), text(900)],
        [text(3000), image(40, 40, media=1, atomic=True), text(900)],
        [text(2999), image(40, 40, media=1), text(901)],
        [text(1030)],
        [text(12)],
    ],
    ids=["the same", "longer", "another image", "an atomic one", "a token earlier", "shorter", "no whole stretch"],
)
def test_keys_that_are_known_are_those_that_would_be_computed(other: Parts) -> None:
    known = KnownKeys()
    assert all_keys(LONG, known) == all_keys(LONG, None)
    assert known.hits == 0
    assert all_keys(other, known) == all_keys(other, None)
    assert all_keys(LONG, known) == all_keys(LONG, None)
    assert known.hits >= len(all_keys(LONG, None)) // 32


def test_of_prompts_that_are_alike_in_part_none_is_given_anothers_keys() -> None:
    known = KnownKeys()
    for seed in range(400):
        rng = random.Random(seed)
        parts = [*random_parts(rng.randrange(40)), text(rng.randrange(300)), *random_parts(rng.randrange(40))]
        layout, generated = lay_out(parts), tuple(range(rng.choice((0, rng.randrange(200)))))
        made = BlockKeys(layout, generated, 4, b"root", known)
        made.compute()
        assert [made[place] for place in range(len(made))] == keys(parts, generated)
    assert known.hits > 100


def test_atomic_spans_that_cannot_be_are_refused_where_keys_are_made_and_not_where_they_are_used() -> None:
    layout = lay_out([text(8), image(4, 4, atomic=True), text(9)])
    with pytest.raises(InvalidRecord):
        computed_keys(b"model", replace(layout, atomic=(Run(4, 10), Run(6, 10))), (), b"", 4)


def test_another_tenant_knows_none_of_them() -> None:
    known = KnownKeys()
    all_keys(LONG, known, b"one")
    assert not set(all_keys(LONG, known, b"other")) & set(all_keys(LONG, known, b"one"))
    assert known.hits == len(all_keys(LONG, None)) // 32  # the second time for the first of them


def test_the_stretches_that_were_asked_for_last_stay_known() -> None:
    known = KnownKeys(most=2)
    first, second, third = ([TextPart((number,) * 128)] for number in range(3))
    for parts in (first, second, first, third):
        all_keys(parts, known)
    assert known.hits == 1
    all_keys(first, known)
    assert known.hits == 2, "it was asked for later than the second"
    all_keys(second, known)
    assert known.hits == 2, "there was no place for it"
