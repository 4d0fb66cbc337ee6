"""A real Prometheus with the rules of deploy/, which looks every second."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

DEPLOYED = Path(__file__).parents[2] / "deploy" / "prometheus"
START_SECONDS = 60.0
SCRAPE_SECONDS = 1


@dataclass(frozen=True)
class Series:
    """What one query found: labels, and values by time (seconds since 1970)."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class Prometheus:
    """A context; `url` answers within it."""

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        """addresses: host and port of what is here, by those that deploy/prometheus/prometheus.yml has"""
        folder.mkdir()
        text = (DEPLOYED / "prometheus.yml").read_text()
        for deployed, here in addresses.items():
            assert deployed in text
            text = text.replace(deployed, here)
        settings = yaml.safe_load(text.replace("refresh_interval: 10s", f"refresh_interval: {SCRAPE_SECONDS}s"))
        settings["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{SCRAPE_SECONDS}s")
        settings["rule_files"] = [str(DEPLOYED / name) for name in settings["rule_files"]]
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(settings))
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "prometheus.log"
        self._command = [
            *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
            *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
        ]
        self._http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    @staticmethod
    def is_here() -> bool:
        return shutil.which("prometheus") is not None

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Prometheus did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        finally:
            self._process.kill()

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    def now(self, expr: str) -> list[Series]:
        """What a query says at this moment."""
        found = self._get("/api/v1/query", query=expr)["result"]
        return [Series(each["metric"], [_point(each["value"])]) for each in found]

    def between(self, expr: str, start: float, end: float) -> list[Series]:
        """What a query says from `start` to `end`, seconds since 1970, at each scrape."""
        found = self._get("/api/v1/query_range", query=expr, start=start, end=end, step=SCRAPE_SECONDS)["result"]
        return [Series(each["metric"], [_point(value) for value in each["values"]]) for each in found]

    def values_of(self, label: str, selector: str) -> list[str]:
        """As Grafana's label_values(selector, label)."""
        values: list[str] = self._get(f"/api/v1/label/{label}/values", **{"match[]": selector})
        return values

    def targets_down(self) -> list[str]:
        """Those that do not answer, and why."""
        active = self._get("/api/v1/targets", state="active")["activeTargets"]
        return [f"{each['scrapeUrl']}: {each['lastError']}" for each in active if each["health"] != "up"]

    def _get(self, path: str, **parameters: Any) -> Any:
        response = self._http.get(path, params=parameters)
        told = response.json()
        assert told["status"] == "success", f"{parameters}: {told}"
        return told["data"]


def _point(told: Sequence[Any]) -> tuple[float, float]:
    return float(told[0]), float(told[1])
