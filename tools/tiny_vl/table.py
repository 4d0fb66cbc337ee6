"""The model card's tables: exact match by family and kind of question, and faults that show, each with its interval."""

from collections.abc import Iterator, Mapping

from tools.tiny_vl.intervals import Tally, merged, wilson

_HEAD = "| family | question | right | exact match | 95 % interval | bound |\n|---|---|---|---|---|---|"
_FAULT_HEAD = "| fault | where it shows | noticed | share | 95 % interval | bound |\n|---|---|---|---|---|---|"
_FAMILY_HEAD = "| family | right | exact match | 95 % interval |\n|---|---|---|---|"
_FIRST_TOKENS = "first tokens, "


def markdown(tallies: Mapping[str, Mapping[str, Tally]]) -> str:
    """tallies: family -> kind -> tally. A family's own row has its mean; its worst kind is named there."""
    return "\n".join([_HEAD, *_rows(tallies)])


def fault_markdown(tallies: Mapping[str, Mapping[str, Tally]]) -> str:
    """tallies: fault -> where it shows -> tally; what is told by family ("first tokens, chart") becomes one row."""
    return "\n".join([_FAULT_HEAD, *_fault_rows(tallies)])


def family_markdown(tallies: Mapping[str, Mapping[str, Tally]]) -> str:
    """tallies: family -> kind -> tally. A row for each family, no bounds."""
    return "\n".join([_FAMILY_HEAD, *(_family_row(family, merged(of.values())) for family, of in tallies.items())])


def worst_kind(kinds: Mapping[str, Tally]) -> str:
    """The kind with the smallest share of right answers."""
    return min(kinds, key=lambda kind: kinds[kind].share)


def _rows(tallies: Mapping[str, Mapping[str, Tally]]) -> Iterator[str]:
    for family, kinds in tallies.items():
        if len(kinds) == 1:
            ((kind, tally),) = kinds.items()
            yield _row(f"**{family}**", kind, tally, strong=True)
            continue
        worst = worst_kind(kinds)
        label = f"mean of {len(kinds)}; worst: {worst} {_percent(kinds[worst].share)}"
        yield _row(f"**{family}**", label, merged(kinds.values()), strong=True)
        for kind, tally in kinds.items():
            yield _row("", kind, tally)


def _fault_rows(tallies: Mapping[str, Mapping[str, Tally]]) -> Iterator[str]:
    for fault, places in tallies.items():
        yield from (_row(fault, place, places[place]) for place in places if not place.startswith(_FIRST_TOKENS))
        families = {place: places[place] for place in places if place.startswith(_FIRST_TOKENS)}
        if families:
            worst = worst_kind(families)
            told = f"worst: {worst.removeprefix(_FIRST_TOKENS)} {_percent(families[worst].share)}"
            yield _row(fault, f"first tokens, {len(families)} families; {told}", merged(families.values()))


def _row(family: str, label: str, tally: Tally, strong: bool = False) -> str:
    low, high = wilson(tally)
    share = f"**{_percent(tally.share)}**" if strong else _percent(tally.share)
    bound = "–" if tally.bound is None else f"≥ {100 * tally.bound:.0f} %"
    interval = f"{100 * low:.1f}–{100 * high:.1f}"
    return f"| {family} | {label} | {tally.right} of {tally.total} | {share} | {interval} | {bound} |"


def _family_row(family: str, tally: Tally) -> str:
    low, high = wilson(tally)
    return f"| {family} | {tally.right} of {tally.total} | {_percent(tally.share)} | {100 * low:.1f}–{100 * high:.1f} |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
