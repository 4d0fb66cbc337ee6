import random

import pytest

from tests.transfer.protocol.claims import OTHER, OWNER
from triptych.errors import WorkerLost
from triptych.journey import Endpoint
from triptych.transfer.protocol.peering import (
    AskArenas,
    CloseArenas,
    Neighbourhood,
    NoArena,
    OpenArena,
    PeerMachine,
    PeerState,
)

SUCCESSOR = Endpoint(OWNER.address, OWNER.incarnation + 1)


def met(*arenas: int) -> PeerMachine:
    peer = PeerMachine(OWNER)
    assert peer.wanted(0.0) == (AskArenas(OWNER),)
    assert peer.wanted(0.1) == (), "the second to want it waits for the first one's answer"
    peer.met(0.2, arenas)
    return peer


def opened(*arenas: int) -> PeerMachine:
    peer = met(*arenas)
    for arena in arenas:
        assert peer.arena_wanted(1.0, arena) == (OpenArena(OWNER, arena),)
        peer.opened(1.1, arena, "shm", (("cuda_ipc", "no CUDA here"),))
    return peer


def test_a_refusal_is_remembered_and_the_next_to_want_it_asks_again() -> None:
    peer = PeerMachine(OWNER)
    peer.wanted(0.0)
    peer.refused(0.1, WorkerLost, "no answer")
    assert peer.refusal == (WorkerLost, "no answer")
    assert not peer.lend(0.2)
    assert peer.wanted(0.3) == (AskArenas(OWNER),)
    peer.met(0.4, [1])
    assert peer.refusal is None
    assert peer.lend(0.5)


def test_an_arena_is_opened_once_and_names_its_path_and_the_reasons_of_others() -> None:
    peer = opened(1, 2)
    assert peer.arena_wanted(2.0, 1) == ()
    assert (peer.transport_of(1), peer.transport_of(3), peer.transports) == ("shm", "", ("shm",))
    assert peer.refusals[1] == (("cuda_ipc", "no CUDA here"),)


def test_an_unreachable_arena_is_tried_again() -> None:
    peer = met(1)
    peer.arena_wanted(0.0, 1)
    assert peer.arena_wanted(0.0, 1) == ()
    peer.unreachable(0.1, 1, (("shm", "another host"),))
    assert peer.transport_of(1) == ""
    assert peer.arena_wanted(0.2, 1) == (OpenArena(OWNER, 1),)


def test_an_arena_that_the_neighbour_does_not_have_is_an_ordinary_answer() -> None:
    assert met(1, 2).arena_wanted(0.0, 9) == (NoArena(OWNER, 9, (1, 2)),)


def test_mappings_close_behind_the_last_loan_and_once() -> None:
    peer = opened(1, 2)
    assert peer.lend(2.0)
    assert peer.lend(2.0)
    assert peer.forget(3.0) == peer.returned(3.1) == ()
    assert not peer.lend(3.2), "nobody new reads from a neighbour that is to be forgotten"
    assert peer.returned(4.0) == (CloseArenas(OWNER, (1, 2)),)
    assert peer.forget(5.0) == peer.returned(5.0) == ()
    peer.check()


def test_an_arena_opened_behind_the_end_is_closed_at_once() -> None:
    peer = met(1)
    peer.arena_wanted(0.0, 1)
    assert peer.forget(1.0) == (CloseArenas(OWNER, ()),)
    assert peer.opened(2.0, 1, "shm") == (CloseArenas(OWNER, (1,)),)
    peer.check()


def test_an_answer_that_comes_behind_the_end_wakes_nobody() -> None:
    peer = PeerMachine(OWNER)
    peer.wanted(0.0)
    peer.forget(1.0)
    peer.met(2.0, [1])
    assert not peer.lend(3.0)
    assert peer.state is PeerState.GONE


def test_a_process_that_answers_has_replaced_those_before_it_at_its_address_alone() -> None:
    near = Neighbourhood()
    for endpoint in (OWNER, OTHER, SUCCESSOR):
        machine = near.find(endpoint)
        machine.wanted(0.0)
        machine.met(0.0, [1])
    assert [machine.peer for machine in near.replaced_by(SUCCESSOR)] == [OWNER]
    near.find(OWNER).forget(1.0)
    assert near.replaced_by(SUCCESSOR) == ()
    assert set(near.usable()) == {OTHER, SUCCESSOR}


def test_a_process_that_was_forgotten_is_a_stranger_again() -> None:
    near = Neighbourhood()
    before = near.find(OWNER)
    before.wanted(0.0)
    before.met(0.0, [1])
    assert near.known(OWNER) is before
    before.forget(1.0)
    assert near.known(OWNER) is None
    after = near.find(OWNER)
    assert after is not before
    assert after.wanted(2.0) == (AskArenas(OWNER),)


@pytest.mark.parametrize("seed", range(100))
def test_any_storm_closes_every_opened_arena_once_and_never_under_a_loan(seed: int) -> None:
    chance, peer = random.Random(seed), PeerMachine(OWNER)
    opening: set[int] = set()
    mapped: set[int] = set()
    loans = 0
    for _ in range(120):
        what = chance.choices(
            ["wanted", "met", "refused", "lend", "return", "arena", "opened", "unreachable", "forget"],
            [2, 2, 0.3, 3, 3, 3, 3, 0.5, 0.1],
        )[0]
        actions: tuple[object, ...] = ()
        if what == "wanted":
            peer.wanted(0.0)
        elif what == "met":
            peer.met(0.0, [1, 2, 3])
        elif what == "refused":
            peer.refused(0.0, WorkerLost, "?")
        elif what == "lend":
            loans += peer.lend(0.0)
        elif what == "return" and loans:
            loans -= 1
            actions = peer.returned(0.0)
        elif what == "arena":
            actions = peer.arena_wanted(0.0, chance.randint(1, 3))
        elif what == "opened" and opening:
            arena = opening.pop()
            mapped.add(arena)
            actions = peer.opened(0.0, arena, "shm")
        elif what == "unreachable" and opening:
            peer.unreachable(0.0, opening.pop(), ())
        elif what == "forget":
            actions = peer.forget(0.0)
        for action in actions:
            if isinstance(action, OpenArena):
                assert action.arena not in mapped | opening
                opening.add(action.arena)
            elif isinstance(action, CloseArenas):
                assert loans == 0
                assert set(action.arenas) <= mapped
                mapped -= set(action.arenas)
        peer.check()
    if peer.state is PeerState.GONE:
        assert not mapped
