"""Who asks, as the edge has found out."""

from dataclasses import dataclass

from starlette.types import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """tenant: the name behind the key; empty where the server knows no keys.

    request_id: what the client reads in x-request-id, and the log says
    """

    tenant: str = ""
    request_id: str = ""


NOBODY = Caller()


def caller_of(scope: Scope) -> Caller:
    state = scope.get("state", {})
    return Caller(state.get("tenant", ""), state.get("request_id", ""))
