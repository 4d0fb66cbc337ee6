"""What may be wished for, by topology."""

import pytest

from triptych.cluster.groups import counts_wished, first_counts, group_meant, groups_of
from triptych.config import ServeSettings
from triptych.errors import InvalidRequest
from triptych.journey import Role


def test_roles_that_share_a_process_are_one_group_of_as_many_as_any_of_them_asks() -> None:
    assert groups_of("ep+d") == {"ep": frozenset({Role.ENCODE, Role.PREFILL}), "decode": frozenset({Role.DECODE})}
    assert first_counts(ServeSettings(topology="ep+d", encoders=3, prefills=2, decodes=4)) == {"ep": 3, "decode": 4}
    assert first_counts(ServeSettings(topology="epd", decodes=2)) == {"epd": 2}


def test_a_wish_changes_what_it_names_by_group_or_role() -> None:
    assert counts_wished("e+p+d", {"encode": 1, "prefill": 1, "decode": 1}, {"encode": 2, "decode": 3}, 8) == {
        "encode": 2,
        "prefill": 1,
        "decode": 3,
    }
    assert counts_wished("ep+d", {"ep": 1, "decode": 1}, {"encode": 2, "prefill": 2}, 8) == {"ep": 2, "decode": 1}
    assert counts_wished("epd", {"epd": 1}, {"epd": 4}, 8) == {"epd": 4}


@pytest.mark.parametrize(
    ("topology", "wish", "reason"),
    [
        ("e+p+d", {}, "name a role and a number, as encode=2"),
        ("e+p+d", {"decode": 0}, "decode=0 would leave requests without a worker"),
        ("e+p+d", {"decode": -1}, "expected 1 or more"),
        ("e+p+d", {"decode": 7}, "9 workers are too many; serve.max_workers of this server is 8"),
        ("e+p+d", {"encoder": 2}, "'encoder' is no role of topology e\\+p\\+d; there are encode, prefill, decode"),
        ("ep+d", {"encode": 2, "prefill": 3}, "encode=2 and prefill=3 cannot be: .* wish for ep=N"),
        ("epd", {"pd": 2}, "there are epd, encode, prefill, decode"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(topology: str, wish: dict[str, int], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        counts_wished(topology, dict.fromkeys(groups_of(topology), 1), wish, 8)


def test_a_role_means_the_process_that_has_it() -> None:
    assert group_meant("e+pd", "decode") == group_meant("e+pd", "pd") == "pd"


@pytest.mark.parametrize(("param", "told"), [(None, "vision"), ("role", "role")])
def test_what_is_no_role_is_told_by_the_field_that_has_it(param: str | None, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        group_meant("e+pd", "vision", param)
    assert refused.value.param == told
