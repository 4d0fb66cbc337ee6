"""The API's description as /openapi.json gives it: bodies from the schemas that check them, errors everywhere."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from triptych.router.api.anthropic.errors import is_anthropic
from triptych.router.api.described import POSTS, Described

_REFERENCE = "#/components/schemas/{model}"
_NULLABLE_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _NULLABLE_TEXT,
                "code": _NULLABLE_TEXT,
            },
        }
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
STATUSES: Mapping[str, str] = {
    "400": "something in the request has to change; `param` names it",
    "401": "the API key is missing or wrong",
    "403": "the key may not do this",
    "404": "there is no such model or route",
    "405": "the route takes other methods",
    "410": "what is asked for is no longer kept",
    "413": "the body or an image has more bytes than allowed",
    "415": "the body says that it is no JSON",
    "429": "too much is asked at once; see the header retry-after",
    "431": "the head of the request is too large",
    "500": "a fault of the server's",
    "503": "the server cannot answer now; see the header retry-after",
    "504": "the time for the request is over",
}


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """What to set `app.openapi` to."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    return openapi


def _build(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas: dict[str, Any] = {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    described = {endpoint.path: endpoint for endpoint in POSTS}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # the framework's own; ours are 400
            operation["responses"] |= _failures(path)
        if path in described:
            _fill(operations["post"], described[path], schemas)
    document["components"] = {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    document["security"] = [{}, {"key": []}]
    return document


def _failures(path: str) -> dict[str, Any]:
    name = "AnthropicError" if is_anthropic(path) else "Error"
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=name)}}}
    return {status: {"description": why, "content": content} for status, why in STATUSES.items()}


def _fill(operation: dict[str, Any], endpoint: Described, schemas: dict[str, Any]) -> None:
    """schemas: to which the endpoint's are added"""
    schema = endpoint.request.model_json_schema(ref_template=_REFERENCE)
    schemas.update(schema.pop("$defs", {}))
    schemas[endpoint.request.__name__] = schema
    operation["summary"] = endpoint.summary
    operation["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": _REFERENCE.format(model=endpoint.request.__name__)}},
        },
    }
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    operation["responses"]["200"] = {"description": "the answer", "content": content}
