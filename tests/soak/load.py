"""Requests of every kind, as fast as they are answered, from several clients at once."""

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx

from tests.journey.bad_images import BAD_IMAGES
from tests.journey.conversations import conversations, picture, png
from tests.journey.messages import image, user

ANSWER_SECONDS = 120.0
_ASKED = [conversation.messages for seed in range(3) for conversation in conversations(seed)]
_BAD = [BAD_IMAGES[name] for name in sorted(BAD_IMAGES)]


class Load:
    """Clients on threads of their own, from the constructor to `stop`."""

    def __init__(self, url: str, clients: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._url = url
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns when the last answer has come."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS)
            assert not thread.is_alive(), "a request hung"

    def _run(self, number: int) -> None:
        rng = random.Random(number)
        with httpx.Client(base_url=self._url, timeout=ANSWER_SECONDS, trust_env=False) as client:
            while not self._stopping.is_set():
                try:
                    outcome = _ask(client, rng)
                except httpx.HTTPError as error:
                    outcome = type(error).__name__
                    time.sleep(0.2)
                with self._lock:
                    self.outcomes[outcome] += 1


def _ask(client: httpx.Client, rng: random.Random) -> str:
    """One request; what became of it, in words."""
    kind = rng.random()
    if kind < 0.05:
        bad = rng.choice(_BAD)
        asked = body([user(image(bad.data, bad.kind), "What?")])
        return f"bad image: {client.post('/v1/chat/completions', json=asked).status_code}"
    if kind < 0.15:
        return _leave(client, rng)
    if kind < 0.45:  # a picture that nobody has seen
        size = (rng.randrange(28, 225), rng.randrange(28, 225))
        asked = body([user(image(png(picture(rng.getrandbits(31), size))), "What is this?")])
    elif kind < 0.55:
        asked = body(rng.choice(_ASKED), n=2, temperature=1.0, seed=rng.getrandbits(31))
    else:
        asked = body(rng.choice(_ASKED), max_tokens=rng.randrange(1, 40))
    return f"answer: {client.post('/v1/chat/completions', json=asked).status_code}"


def _leave(client: httpx.Client, rng: random.Random) -> str:
    """Closes a stream after some tokens, or before the first."""
    asked = body(rng.choice(_ASKED), max_tokens=400, stream=True)
    until = rng.randrange(6)
    with client.stream("POST", "/v1/chat/completions", json=asked) as response:
        for count, _ in enumerate(response.iter_lines()):
            if count >= 2 * until:
                break
    return f"left: {response.status_code}"


def body(messages: Any, **fields: Any) -> Mapping[str, Any]:
    """Of a chat request that no stop token ends."""
    return {"model": "m", "messages": list(messages), "max_tokens": 12, "ignore_eos": True, **fields}
