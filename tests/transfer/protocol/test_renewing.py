import random

import pytest

from tests.transfer.protocol.claims import OTHER, OWNER, claim
from triptych.journey import Endpoint
from triptych.transfer.protocol.renewing import Renew, Renewals

LEASE = 30.0


def renewals(*numbers: int) -> Renewals[Endpoint]:
    kept: Renewals[Endpoint] = Renewals()
    for number in numbers:
        kept.keep(0.0, OWNER, claim(number), LEASE)
    return kept


def test_claims_are_renewed_every_third_of_the_lease_in_one_message_per_owner() -> None:
    kept = renewals(1, 2)
    kept.keep(0.0, OTHER, claim(3), LEASE)
    assert kept.due(9.9) == ()
    assert kept.due(10.0) == (Renew(OWNER, (claim(1), claim(2)), LEASE), Renew(OTHER, (claim(3),), LEASE))
    assert kept.due(10.0) == kept.due(19.9) == ()
    assert len(kept.due(20.0)) == 2


def test_a_later_claim_goes_along_with_earlier_ones_of_its_owner() -> None:
    kept = renewals(1)
    assert not kept.keep(7.0, OWNER, claim(2), LEASE)
    assert kept.due(10.0) == (Renew(OWNER, (claim(1), claim(2)), LEASE),)
    assert kept.next_due == 20.0


def test_a_shorter_lease_is_due_earlier_and_says_so() -> None:
    kept = renewals(1)
    assert kept.keep(1.0, OWNER, claim(2), 3.0)
    assert kept.due(2.0) == (Renew(OWNER, (claim(1), claim(2)), LEASE),), "a renewal never shortens a claim"
    assert kept.next_due == 3.0


def test_what_was_released_is_not_renewed() -> None:
    kept = renewals(1, 2)
    kept.drop(1.0, OWNER, [claim(1), claim(9)])
    assert kept.due(10.0) == (Renew(OWNER, (claim(2),), LEASE),)
    kept.drop(11.0, OWNER, [claim(2)])
    kept.drop(11.0, OTHER, [claim(2)])
    assert (len(kept), kept.next_due, kept.due(99.0)) == (0, float("inf"), ())


def test_what_the_owner_calls_gone_is_dropped_and_the_rest_kept() -> None:
    kept = renewals(1, 2)
    kept.due(10.0)
    kept.answered(10.1, OWNER, [claim(1)])
    kept.answered(10.2, OWNER, [claim(1)])
    assert not kept.keeps(OWNER, claim(1))
    assert kept.keeps(OWNER, claim(2))


def test_an_owner_that_does_not_answer_is_asked_again_within_the_lease_of_its_claims() -> None:
    kept, now = renewals(1), 10.0
    tries = 0
    while now < LEASE:  # as often as it fails before the claim would end
        assert kept.due(now)
        tries += 1
        kept.failed(now + 0.1, OWNER)
        now = kept.next_due
    assert tries >= 4


def test_a_failure_of_one_owner_changes_nothing_for_others() -> None:
    kept = renewals(1)
    kept.keep(0.0, OTHER, claim(2), LEASE)
    kept.due(10.0)
    kept.failed(10.0, OTHER)
    assert [message.owner for message in kept.due(13.0)] == [OTHER]


def test_claims_of_a_lost_owner_are_dropped_whole() -> None:
    kept = renewals(1, 2)
    assert (kept.lost(1.0, OWNER), kept.lost(1.0, OWNER), len(kept)) == (2, 0, 0)
    kept.failed(2.0, OWNER)
    assert kept.next_due == float("inf")


@pytest.mark.parametrize("seed", range(50))
def test_a_kept_claim_is_in_a_message_every_third_of_its_lease_whatever_else_happens(seed: int) -> None:
    chance, now = random.Random(seed), 0.0
    kept: Renewals[Endpoint] = Renewals()
    last_sent: dict[tuple[Endpoint, int], float] = {}
    lease_of = {number: chance.choice([3.0, 9.0, 30.0]) for number in range(12)}
    for _ in range(400):
        owner, number = chance.choice([OWNER, OTHER]), chance.randrange(12)
        what = chance.choice(["keep", "keep", "drop", "gone", "failed", "lost", "wait", "wait", "wait"])
        if what == "keep" and (owner, number) not in last_sent:
            kept.keep(now, owner, claim(number), lease_of[number])
            last_sent[owner, number] = now
        elif what == "drop":
            kept.drop(now, owner, [claim(number)])
            last_sent.pop((owner, number), None)
        elif what == "gone":
            kept.answered(now, owner, [claim(number)])
            last_sent.pop((owner, number), None)
        elif what == "failed":
            kept.failed(now, owner)
        elif what == "lost" and chance.random() < 0.1:
            kept.lost(now, owner)
            last_sent = {key: when for key, when in last_sent.items() if key[0] != owner}
        elif what == "wait":
            now = min(now + chance.random(), kept.next_due)
        for message in kept.due(now):
            sent = {(message.owner, number) for number in range(12) if claim(number) in message.claims}
            assert len(sent) == len(message.claims)
            last_sent |= dict.fromkeys(sent, now)
        assert len(kept) == len(last_sent)
        for (_, number), when in last_sent.items():
            assert now - when <= lease_of[number] / 3 + 1e-9
        kept.check()
