"""The shape that every refusal has."""

from typing import Any

import httpx


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The nested error of a response of this status; checks its shape, and that the answer has an id."""
    assert response.status_code == status, f"{response.status_code}: {response.text[:500]}"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert response.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    return error
