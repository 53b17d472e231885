"""Scrapes of the metrics of a broker, read by Prometheus's own parser."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.management.http.client import send
from tests.support.broker import LeveretProcess

try:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    pytest.skip("the extra leveret[management] is not installed", allow_module_level=True)

PROMTOOL: Final = shutil.which("promtool")


def metrics_port(process: LeveretProcess) -> int:
    ready = json.loads((process.directory / "ready.json").read_text("utf-8"))
    return urlsplit(ready["metrics"][0]).port or 0


def scrape(process: LeveretProcess, path: str = "") -> str:
    """Return the text of a scrape of a path below `/metrics`."""
    reply = send(metrics_port(process), "GET", f"/metrics{path}")
    assert reply.status == 200, reply.content
    return reply.content.decode()


class Samples:
    """The samples of a scrape. No metric and no sample may occur twice."""

    def __init__(self, text: str) -> None:
        self.families: dict[str, Metric] = {}
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self.families, family.name
            self.families[family.name] = family
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self._values, key
                self._values[key] = sample.value

    def names(self) -> set[str]:
        return {name for name, _ in self._values}

    def value(self, name: str, /, **labels: str) -> float:
        return self._values[name, frozenset(labels.items())]

    def find(self, name: str, /, **labels: str) -> list[dict[str, str]]:
        """Return the labels of the samples of a metric that have at least these labels."""
        wanted = set(labels.items())
        return [dict(found) for known, found in self._values if known == name and wanted <= found]

    def sum(self, name: str, /, **labels: str) -> float:
        wanted = set(labels.items())
        return sum(value for (known, found), value in self._values.items() if known == name and wanted <= found)


def promtool(*arguments: str, text: str | None = None) -> str:
    """Run promtool and return its output; skip the test if it is not installed."""
    if PROMTOOL is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run([PROMTOOL, *arguments], input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
