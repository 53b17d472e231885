"""The dashboard and the alert rules, and those of RabbitMQ, on the metrics of a real broker."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leveret import sync
from tests.management.http.client import HttpBroker
from tests.management.http.scrapes import Samples, metrics_port, promtool, scrape
from tests.support.broker import ROOT, free_port
from tests.support.polling import wait_until

DASHBOARD = ROOT / "docs/monitoring/leveret-dashboard.json"
RULES = ROOT / "docs/monitoring/leveret-alerts.yml"
FAMILIES = ("queue_coarse_metrics", "queue_consumer_count", "queue_metrics", "queue_delivery_metrics", "exchange_metrics")
DETAILED = "/detailed?" + "&".join(f"family={name}" for name in FAMILIES)
# Metrics of RabbitMQ's dashboard Overview.
_NAMES = """
channels channels_closed_total channels_opened_total connections connections_closed_total
connections_opened_total disk_space_available_bytes disk_space_available_limit_bytes erlang_uptime_seconds
global_consumers global_messages_acknowledged_total global_messages_confirmed_total
global_messages_delivered_consume_auto_ack_total global_messages_delivered_consume_manual_ack_total
global_messages_delivered_get_auto_ack_total global_messages_delivered_get_manual_ack_total
global_messages_delivered_total global_messages_get_empty_total global_messages_received_confirm_total
global_messages_received_total global_messages_redelivered_total global_messages_routed_total
global_messages_unroutable_dropped_total global_messages_unroutable_returned_total global_publishers
message_size_bytes_bucket message_size_bytes_count message_size_bytes_sum process_max_fds process_open_fds
process_resident_memory_bytes queue_messages_ready queue_messages_unacked queues queues_created_total
queues_declared_total queues_deleted_total resident_memory_limit_bytes
"""
OVERVIEW = _NAMES.split()
JOIN = "on(instance, job) group_left(rabbitmq_cluster, rabbitmq_node)"


def dashboard_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_rules_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))


def test_metrics_of_the_dashboard_and_the_rules_exist(api: HttpBroker) -> None:
    with sync.connect(api.process.url()) as connection:
        connection.channel().declare_queue("monitored", exclusive=True)
        wait_until(lambda: api.get("/queues/%2F/monitored"))
        exported = Samples(scrape(api.process)).names() | Samples(scrape(api.process, DETAILED)).names()
    rules = "\n".join(line for line in RULES.read_text("utf-8").splitlines() if "summary" not in line)
    used = set(re.findall(r"\b(?:rabbitmq|leveret)_\w+", "\n".join([rules, *dashboard_expressions()])))
    assert len(used) > 40
    assert used - exported == set()


def test_metrics_of_rabbitmqs_overview_exist(api: HttpBroker) -> None:
    exported = Samples(scrape(api.process)).names()
    assert [name for name in OVERVIEW if f"rabbitmq_{name}" not in exported] == []


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[str]:
    """Run Prometheus on a broker, and yield its URL."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    directory.mkdir()
    port = free_port()
    job = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "static_configs": [{"targets": [target]}]}
    config = {
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {**job, "job_name": "leveret"},
            {
                **job,
                "job_name": "leveret-queues",
                "metrics_path": "/metrics/detailed",
                "params": {"family": list(FAMILIES)},
            },
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def query(url: str, expression: str) -> list[Any]:
    """Return the result of an instant query; an empty one while Prometheus starts."""
    try:
        with urllib.request.urlopen(
            f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", timeout=60
        ) as reply:
            found = json.load(reply)["data"]["result"]
    except OSError:
        return []
    assert isinstance(found, list)
    return found


@pytest.mark.slow
def test_dashboards_show_data_in_prometheus(api: HttpBroker, tmp_path: Path) -> None:
    """Every panel, and the joins of RabbitMQ's panels, have a result."""
    target = f"127.0.0.1:{metrics_port(api.process)}"
    node = api.get("/overview")["node"]
    identity = f'rabbitmq_identity_info{{rabbitmq_cluster="{node}",rabbitmq_endpoint="aggregated"}}'
    expressions = [
        expression.replace("$instance", target).replace("$__rate_interval", "10s") for expression in dashboard_expressions()
    ]
    expressions += [f"sum(rabbitmq_{name} * {JOIN} {identity}) by(rabbitmq_node)" for name in OVERVIEW]
    with sync.connect(api.process.url()) as connection, prometheus(tmp_path / "prometheus", target) as url:
        channel = connection.channel()
        channel.declare_queue("monitored", durable=True)

        def has_data() -> bool:
            channel.publish(b"body", routing_key="monitored", persistent=True)
            message = channel.get("monitored")
            assert message is not None
            message.ack()
            return bool(query(url, expression))

        for expression in expressions:
            wait_until(has_data, expression)
        rules = json.load(urllib.request.urlopen(f"{url}/api/v1/rules", timeout=60))["data"]["groups"]
        healths = {rule["health"] for group in rules for rule in group["rules"]}
        assert healths <= {"ok", "unknown"}
        channel.delete_queue("monitored")
