"""`make screenshots`: pictures of the page at `/`, of a server under load, for the documentation."""

import argparse
import base64
import importlib.util
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import httpx
from PIL import Image

from tools.browser import NAMES, Browser, find_browser

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
MOST_BYTES = 200 << 10  # of one picture
WIDTH, HEIGHT = 1280, 900
_STREAMS = 3  # of questions, one after another
_PAUSE_SECONDS = 0.15  # between two of them
_LOAD_SECONDS = 25.0  # ahead of the pictures, so that the instruments have something to show
_SETTINGS = """
[serve]
device = "cpu"
topology = "e+p+d"
encoders = 2
prefills = 1
decodes = 2
cpu_threads = 1
ray = "local"

[router]
port = 0
log_level = "warning"

[encoder]
arena_bytes = 33554432

[language]
kv_bytes = 67108864
landing_bytes = 33554432
"""

_BUSY = "document.querySelectorAll('.dot').length >= 4"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.screenshots", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs", help="folder for page-light.png and page-dark.png"
    )
    folder: Path = parser.parse_args(arguments).output
    path = find_browser()
    if path is None:
        print(f"there is no browser here, none of {', '.join(NAMES)}: apt-get install chromium", file=sys.stderr)
        return 1
    with _server() as url, _load(url), _fonts() as environment, Browser(path, environment) as browser:
        tab = browser.open()
        tab.resize(WIDTH, HEIGHT)
        tab.go(url)
        tab.evaluate(f"new Promise((resolve) => setTimeout(resolve, {_LOAD_SECONDS * 1000}))")
        tab.catch_files()
        tab.evaluate("document.getElementById('choose').focus()")
        tab.press("Enter")
        tab.choose_files([DATA / "tower.png"])
        tab.wait("document.getElementById('preview').naturalWidth > 0")
        tab.evaluate("document.getElementById('ask').requestSubmit()")
        tab.wait("document.querySelector('#answer-bar .bar')")
        tab.evaluate("document.activeElement.blur()")
        for scheme in ("light", "dark"):
            tab.prefer(prefers_color_scheme=scheme)
            tab.wait(_BUSY)
            picture = _small(tab.picture())
            (folder / f"page-{scheme}.png").write_bytes(picture)
            print(f"{folder / f'page-{scheme}.png'}: {len(picture) >> 10} KiB")
    return 0


@contextmanager
def _server() -> Iterator[str]:
    """A server of five workers; its URL."""
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder) / "settings.toml", Path(folder) / "log"
        config.write_text(_SETTINGS)
        command = [sys.executable, "-m", "triptych.cli", "serve", "--config", str(config)]
        with log.open("w") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("Triptych is ready on"):
                raise RuntimeError(log.read_text()[-4000:])
            yield line.split()[4].removesuffix("/v1")
        finally:
            process.terminate()
            process.wait(timeout=60)


@contextmanager
def _load(url: str) -> Iterator[None]:
    """Questions of tests/data, some at a time, until the context ends."""
    questions: list[dict[str, Any]] = json.loads((DATA / "questions.json").read_text())
    model = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"]
    is_over, to_ask = threading.Event(), itertools.cycle(questions)

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            while not is_over.is_set():
                question = next(to_ask)
                images = [_part((DATA / name).read_bytes()) for name in question["images"]]
                content = [*images, {"type": "text", "text": question["question"]}]
                body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 32}
                client.post("/v1/chat/completions", json=body)
                is_over.wait(_PAUSE_SECONDS)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(_STREAMS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _part(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@contextmanager
def _fonts() -> Iterator[dict[str, str]]:
    """An environment in which the page's own typefaces are there, whatever the machine has: pictures look alike."""
    specs = [importlib.util.find_spec(f"font_source_{kind}_pro") for kind in ("sans", "serif")]
    folders = [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin]
    listed = "".join(f"<dir>{escape(str(folder))}</dir>" for folder in folders)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.write(
            '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
            f'<include ignore_missing="yes">/etc/fonts/fonts.conf</include>{listed}</fontconfig>'
        )
        config.flush()
        yield os.environ | {"FONTCONFIG_FILE": config.name}


def _small(png: bytes) -> bytes:
    """The same picture in a palette of its own, in which rare colours have a place. Raises RuntimeError."""
    packed = io.BytesIO()
    with Image.open(io.BytesIO(png)) as opened:
        image = opened.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(packed, "PNG", optimize=True)
    if packed.tell() > MOST_BYTES:
        raise RuntimeError(f"a picture of {packed.tell()} bytes is more than the documentation has room for")
    return packed.getvalue()


if __name__ == "__main__":
    sys.exit(main())
