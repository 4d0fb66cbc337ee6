"""Who asks, as the edge has found out."""

from dataclasses import dataclass, field

from starlette.types import Scope

from triptych.router.edge.account import Account
from triptych.router.observe.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class Caller:
    """tenant: the name behind the key; empty where the server knows no keys.

    request_id: what the client reads in x-request-id, and the log says
    account: where the edge has summed up what the request takes; None where nobody keeps account
    service_class: what its answer is held against; empty where nobody does
    endpoint: the path that was asked
    trace: which it belongs to, if to any
    """

    tenant: str = ""
    request_id: str = ""
    account: Account | None = field(default=None, compare=False)
    service_class: str = field(default="", compare=False)
    endpoint: str = field(default="", compare=False)
    trace: TraceContext | None = field(default=None, compare=False)


NOBODY = Caller()


def caller_of(scope: Scope) -> Caller:
    state = scope.get("state", {})
    return Caller(
        state.get("tenant", ""),
        state.get("request_id", ""),
        state.get("account"),
        state.get("service_class", ""),
        scope.get("path", ""),
        state.get("trace"),
    )


def arrival_of(scope: Scope) -> float | None:
    """When the request's head was there, on time.perf_counter; None where no edge has seen it."""
    arrived: float | None = scope.get("state", {}).get("arrived")
    return arrived
