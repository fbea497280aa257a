"""A real Prometheus on a loopback port, configured by observability/prometheus/prometheus.yml."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.free_ports import free_ports

FOLDER = Path(__file__).resolve().parents[2] / "observability/prometheus"
LIMIT_S = 60.0
_POLL_S = 0.25


def configuration(addresses: list[str], password_file: Path) -> dict[str, Any]:
    """Returns the shipped configuration with other targets, a short interval and HTTP. Labels and login stay."""
    shipped = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    shipped["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (scrape,) = shipped["scrape_configs"]
    scrape["scheme"] = "http"
    del scrape["tls_config"]
    scrape["basic_auth"]["password_file"] = str(password_file)
    scrape["static_configs"] = [
        {"targets": [address], "labels": {"broker": str(number)}} for number, address in enumerate(addresses, 1)
    ]
    return shipped


class Prometheus:
    """Used as `with`: it has ended at the end."""

    def __init__(self, folder: Path, addresses: list[str], password_file: Path) -> None:
        self._folder = folder
        (self._port,) = free_ports(1)
        for name in ("alerts.yml", "confluent.yml"):
            shutil.copy(FOLDER / name, folder)
        (folder / "prometheus.yml").write_text(
            yaml.safe_dump(configuration(addresses, password_file)), encoding="utf-8"
        )

    def __enter__(self) -> Self:
        command = [
            "prometheus",
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
        ]
        self._log = (self._folder / "prometheus.log").open("w")
        self._process = subprocess.Popen(command, cwd=self._folder, stderr=self._log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def ask(self, path: str, **words: str) -> Any:
        """Returns the answer of its API. Errors: OSError while it starts."""
        with urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(words)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[dict[str, Any]]:
        """Returns the numbers that a query finds now; nothing while Prometheus starts."""
        try:
            found = self.ask("query", query=query)["result"]
        except OSError:
            return []
        return [each for each in found if each["value"][1] != "NaN"]

    def until(self, query: str) -> list[dict[str, Any]]:
        """Returns the same, once there is a value. Errors: AssertionError after `LIMIT_S`."""
        end_s = time.monotonic() + LIMIT_S
        while not (found := self.values(query)):
            assert time.monotonic() < end_s, (
                f"no data for {query}: {(self._folder / 'prometheus.log').read_text()[-2000:]}"
            )
            time.sleep(_POLL_S)
        return found
