"""The sets of workers that there are, each with a model of its own, and what becomes of them. Pure: no Ray, no clock.

A reload brings a set up beside the one that serves. It is coming until every router has proven all of its workers; then
it serves, and the one before it finishes: it begins with no request any more, and is kept whole for those that it has.
When there are none it leaves, as a coming one does that is given up.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite
from typing import Any

from triptych.cluster.names import FIRST_SET
from triptych.errors import InvalidRequest


class Phase(enum.StrEnum):
    COMING = "coming"  # loads and is proven; no request begins with it yet
    SERVING = "serving"
    FINISHING = "finishing"
    LEAVING = "leaving"  # its workers drain and end, or never were


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """As many workers of each group as are wanted, all with one model.

    model:        a folder, or the embedded model's name
    until:        the moment from which one that comes is given up, and one that finishes leaves whatever it has
    kept_until:   the moment before which one that finishes does not leave
    keep_seconds: of one that comes: how long the one before it is to be kept
    """

    number: int
    model: str
    phase: Phase = Phase.SERVING
    until: float = inf
    kept_until: float = -inf
    keep_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sets:
    """each: in the order in which they came. previous: the model before. trouble: why the last reload came to nothing.

    last: the highest number that any set has had
    turn: how often another set has come to serve; what routers say is of one turn
    """

    each: tuple[WorkerSet, ...]
    previous: str = ""
    trouble: str = ""
    last: int = FIRST_SET
    turn: int = 0

    @property
    def serving(self) -> WorkerSet:
        return next(each for each in self.each if each.phase is Phase.SERVING)

    @property
    def wanted(self) -> frozenset[int]:
        """Those whose workers are kept as many as are wanted."""
        return frozenset(each.number for each in self.each if each.phase is not Phase.LEAVING)

    def in_phase(self, phase: Phase) -> list[WorkerSet]:
        """The latest last."""
        return [each for each in self.each if each.phase is phase]

    def model_of(self, number: int) -> str:
        return next(each.model for each in self.each if each.number == number)

    def changed(self, number: int, **values: Any) -> "Sets":
        return replace(self, each=tuple(replace(e, **values) if e.number == number else e for e in self.each))


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the sets, by number.

    proven:  all workers that are wanted are there, and every router has found them right
    idle:    no router has a request with it, nor will begin one
    trouble: why it cannot come to serve
    empty:   none of its workers is left
    waits:   for what one that comes is waiting, in words
    """

    proven: Collection[int] = ()
    idle: Collection[int] = ()
    trouble: Mapping[int, str] = field(default_factory=dict)
    empty: Collection[int] = ()
    waits: Mapping[int, str] = field(default_factory=dict)


def first_set(model: str) -> Sets:
    return Sets((WorkerSet(FIRST_SET, model),))


def reloaded(sets: Sets, model: str, until: float, keep_seconds: float = 0.0) -> Sets:
    """With one more that comes. Raises InvalidRequest where another does."""
    for other in sets.in_phase(Phase.COMING):
        raise InvalidRequest(
            f"set {other.number} with {other.model} is still coming; wait for it, or take it back: "
            "triptych reload --back",
            param="model",
        )
    number = sets.last + 1
    new = WorkerSet(number, model, Phase.COMING, until=until, keep_seconds=keep_seconds)
    return replace(sets, each=(*sets.each, new), trouble="", last=number)


def taken_back(sets: Sets, until: float) -> Sets | None:
    """One that comes is given up; else the one before serves again, where it is still whole. None where it is not.

    until: the moment from which the one that has served leaves whatever it has
    """
    if coming := sets.in_phase(Phase.COMING):
        return replace(sets.changed(coming[-1].number, phase=Phase.LEAVING), trouble="")
    return serving_again(sets, sets.previous, until)


def serving_again(sets: Sets, model: str, until: float, kept_until: float = -inf) -> Sets | None:
    """With the set that finishes and has this model in the place of the one that serves. None where there is none.

    until, kept_until: of the one that has served
    """
    for each in reversed(sets.in_phase(Phase.FINISHING)):
        if each.model == model:
            return replace(_shifted(sets, each, until, kept_until), trouble="")
    return None


def proceeded(sets: Sets, facts: Facts, now: float, drain_seconds: float) -> Sets:
    """What has become of them. drain_seconds: that requests may take to end with one that finishes."""
    for each in sets.each:
        if each.phase is Phase.COMING:
            sets = _come(sets, each, facts, now, drain_seconds)
        elif each.phase is Phase.FINISHING:
            is_done = each.number in facts.idle and now >= each.kept_until
            if is_done or now >= each.until:
                sets = sets.changed(each.number, phase=Phase.LEAVING)
        elif each.phase is Phase.LEAVING and each.number in facts.empty:
            sets = replace(sets, each=tuple(other for other in sets.each if other.number != each.number))
    return sets


def _come(sets: Sets, coming: WorkerSet, facts: Facts, now: float, drain_seconds: float) -> Sets:
    number, trouble = coming.number, facts.trouble.get(coming.number, "")
    if not trouble and number in facts.proven:
        kept_until = now + coming.keep_seconds
        return _shifted(sets, coming, max(now + drain_seconds, kept_until), kept_until)
    if not trouble and now >= coming.until:
        trouble = f"it was not ready in time: {facts.waits.get(number, 'not all of its workers have started')}"
    if not trouble:
        return sets
    return replace(
        sets.changed(number, phase=Phase.LEAVING),
        trouble=f"set {number} with {coming.model} was given up: {trouble}",
    )


def _shifted(sets: Sets, to: WorkerSet, until: float, kept_until: float) -> Sets:
    before = sets.serving
    for older in sets.in_phase(Phase.FINISHING):  # only the one before is kept for a way back
        sets = sets.changed(older.number, kept_until=-inf)
    sets = sets.changed(before.number, phase=Phase.FINISHING, until=until, kept_until=kept_until)
    sets = sets.changed(to.number, phase=Phase.SERVING, until=inf, kept_until=-inf)
    return replace(sets, previous=before.model, turn=sets.turn + 1)


_WORDS = {
    Phase.COMING: "comes up beside it",
    Phase.SERVING: "serves",
    Phase.FINISHING: "begins with no request any more, and finishes those that it has",
    Phase.LEAVING: "leaves",
}


def changes(before: Sets, after: Sets) -> list[str]:
    """What has changed, in lines for whoever watches."""
    phases = {each.number: each.phase for each in before.each}
    here = {each.number for each in after.each}
    lines = [after.trouble] if after.trouble != before.trouble and after.trouble else []
    lines += [
        f"set {each.number} with {each.model} {_WORDS[each.phase]}"
        for each in after.each
        if phases.get(each.number) is not each.phase
    ]
    return lines + [f"set {each.number} has ended" for each in before.each if each.number not in here]


def sets_as_values(sets: Sets, now: float) -> dict[str, Any]:
    """As JSON values, for whoever keeps them next; moments become seconds from now, and None where there is none."""
    return {
        "each": [
            asdict(each) | {"until": _seconds(each.until, now), "kept_until": _seconds(each.kept_until, now)}
            for each in sets.each
        ],
        "previous": sets.previous,
        "trouble": sets.trouble,
        "last": sets.last,
        "turn": sets.turn,
    }


def sets_from_values(values: Mapping[str, Any], now: float) -> Sets:
    """The sets again; what was left of a time begins anew."""
    each = tuple(
        WorkerSet(
            **told
            | {
                "phase": Phase(told["phase"]),
                "until": inf if told["until"] is None else now + told["until"],
                "kept_until": -inf if told["kept_until"] is None else now + told["kept_until"],
            }
        )
        for told in values["each"]
    )
    return Sets(each, values["previous"], values["trouble"], values["last"], values["turn"])


def _seconds(moment: float, now: float) -> float | None:
    return moment - now if isfinite(moment) else None


@dataclass(frozen=True, slots=True)
class Report:
    """What the routers of one server say of the sets, by number.

    turn:     that all of them have been told of; -1 where they differ, or one does not answer
    requests: that have begun with it and not ended
    ready:    its workers that all of them have found right
    trouble:  why some router cannot use it
    """

    turn: int = -1
    requests: Mapping[int, int] = field(default_factory=dict)
    ready: Mapping[int, frozenset[str]] = field(default_factory=dict)
    trouble: Mapping[int, str] = field(default_factory=dict)


def report_of(told: Sequence[Mapping[str, Any] | None]) -> Report:
    """told: what each router has answered, None for one that has not."""
    answers = [answer for answer in told if answer is not None]
    requests: dict[int, int] = {}
    ready: dict[int, list[frozenset[str]]] = {}
    trouble: dict[int, str] = {}
    for answer in answers:
        for each in answer["sets"]:
            number = each["set"]
            requests[number] = requests.get(number, 0) + each["requests"]
            ready.setdefault(number, []).append(frozenset(each["ready"]))
            for name, reason in each["refused"].items():
                trouble[number] = f"{name}: {reason}"
        trouble |= {each["set"]: f"a router cannot read it: {each['reason']}" for each in answer["unusable"]}
    turns = {answer["turn"] for answer in answers}
    is_whole = len(answers) == len(told) > 0
    return Report(
        turn=turns.pop() if is_whole and len(turns) == 1 else -1,
        requests=requests,
        ready={
            number: frozenset.intersection(*by_router)
            for number, by_router in ready.items()
            if is_whole and len(by_router) == len(told)
        },
        trouble=trouble,
    )


def idle_sets(sets: Sets, reports: Collection[Report]) -> frozenset[int]:
    """With which no router of any server has a request, nor will begin one."""
    if not reports or any(report.turn != sets.turn for report in reports):
        return frozenset()  # what they have said may be of a time when requests began with another
    others = {each.number for each in sets.each} - {sets.serving.number}
    return frozenset(number for number in others if not any(report.requests.get(number) for report in reports))


def proven_sets(
    counts: Mapping[str, int], ready: Mapping[int, Mapping[str, Collection[str]]], reports: Collection[Report]
) -> frozenset[int]:
    """Whose every worker that is wanted is there, and has been found right by every router.

    counts: workers wanted, by group; ready: ids of those that are there, by set and group
    """
    return frozenset(
        number
        for number, by_group in ready.items()
        if reports
        and all(len(by_group.get(group, ())) >= count for group, count in counts.items())
        and all({*ids} <= report.ready.get(number, frozenset()) for ids in by_group.values() for report in reports)
    )
