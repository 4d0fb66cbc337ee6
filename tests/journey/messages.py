"""OpenAI messages, made shortly."""

import base64
from collections.abc import Mapping
from typing import Any


def data_uri(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def image(data: bytes, kind: str = "png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_uri(data, kind)}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Mapping[str, Any] | str) -> dict[str, Any]:
    return {"role": "user", "content": [text(part) if isinstance(part, str) else dict(part) for part in parts]}
