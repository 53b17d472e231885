"""Health checks and the reset of statistics."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leveret import sync
from leveret.management.http.certificates import UNITS, expiring
from tests.management.http.client import HttpBroker
from tests.management.http.scrapes import Samples, metrics_port, scrape
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until

ENVIRONMENT = {"LEVERET_MANAGEMENT__ENABLED": "true"}
WITHOUT_LEADERS = "quorum-queues-without-elected-leaders"


@pytest.mark.parametrize(
    "check",
    [
        "alarms",
        "local-alarms",
        "virtual-hosts",
        "is-in-service",
        "ready-to-serve-clients",
        "reached-target-cluster-size",
        "metadata-store/initialized",
        "metadata-store/initialized/with-data",
        f"{WITHOUT_LEADERS}/all-vhosts/",
        f"{WITHOUT_LEADERS}/all-vhosts/pattern/.*",
        f"{WITHOUT_LEADERS}/vhost/%2F/",
        f"{WITHOUT_LEADERS}/vhost/%2F/pattern/.*",
        "certificate-expiration/1/weeks",
    ],
)
def test_checks_that_pass(api: HttpBroker, check: str) -> None:
    reply = api("GET", f"/health/checks/{check}", user="manager")
    assert (reply.status, reply.json) == (200, {"status": "ok"})
    assert "no-cache" in reply.headers["cache-control"]


def test_checks_with_facts(api: HttpBroker) -> None:
    def get(check: str) -> object:
        return api.get(f"/health/checks/{check}")

    for check in ("node-is-quorum-critical", "node-is-mirror-sync-critical"):
        assert get(check) == {"status": "ok", "reason": "single node cluster"}
    for port in (api.process.port, api.port, metrics_port(api.process)):
        assert get(f"port-listener/{port}") == {"status": "ok", "port": port}
    for protocol in (
        "amqp",
        "amqp091",
        "AMQP0.9.1",
        "amqp0-9-1",
        "amqp0_9_1",
        "AMQP1.0",
        "amqp1-0",
        "http",
        "http%2Fprometheus",
    ):
        assert get(f"protocol-listener/{protocol}")
    found = api.get("/health/checks/below-node-connection-limit")
    assert found["limit"] == "infinity" and found["connections"] >= 0
    assert api.get("/aliveness-test/%2F") == api.get("/healthchecks/node") == {"status": "ok"}
    assert api.get(f"/healthchecks/node/{api.get('/overview')['node']}") == {"status": "ok"}
    assert api("GET", "/healthchecks/node/missing").status == 404
    assert api("GET", f"/health/checks/{WITHOUT_LEADERS}/vhost/missing").status == 404


def test_checks_that_fail(api: HttpBroker) -> None:
    failed = api("GET", "/health/checks/port-listener/1")
    assert failed.status == 503
    body = failed.json
    assert api.process.port in body.pop("ports")
    assert body == {"status": "failed", "reason": "No active listener", "missing": 1}
    failed = api("GET", "/health/checks/protocol-listener/mqtt")
    assert failed.status == 503 and "amqp" in failed.json["protocols"] and failed.json["missing"] == "mqtt"
    for check in (
        "port-listener/x",
        "port-listener/" + "9" * 5000,
        "certificate-expiration/x/days",
        "certificate-expiration/1/eons",
    ):
        assert api("GET", f"/health/checks/{check}").status == 400, check
    assert api("GET", "/health/checks/alarms", user=None).status == 401


def test_alarms_and_the_connection_limit(tmp_path: Path) -> None:
    config = f"{basic_config()}[management]\nport = 0\n[limits]\nmemory_high_watermark = 1000\nconnections = 1\n"
    process = LeveretProcess(tmp_path, config=config, environment=ENVIRONMENT)
    with process.start(), sync.connect(process.url()):
        api = HttpBroker(process)
        failed = wait_until(lambda: (reply := api("GET", "/health/checks/alarms")).status == 503 and reply.json)
        assert failed["status"] == "failed" and failed["reason"]
        assert failed["alarms"] == [{"node": api.get("/overview")["node"], "resource": "memory"}]
        assert api("GET", "/health/checks/local-alarms").status == 503
        full = {"status": "failed", "reason": "node connection limit is reached", "limit": 1, "connections": 1}
        for check in ("below-node-connection-limit", "ready-to-serve-clients"):
            reply = api("GET", f"/health/checks/{check}")
            assert (reply.status, reply.json) == (503, full)
        assert api("GET", "/health/checks/is-in-service").status == 200
        wait_until(lambda: Samples(scrape(process)).value("rabbitmq_alarms_memory_used_watermark") == 1)


def test_expiring_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)  # its certificates are valid for a day
    cert, key = authority.issue("server")
    tls = f'[tls]\nport = 0\ncert = "{cert}"\nkey = "{key}"\nca = "{authority.path}"\n'
    process = LeveretProcess(
        tmp_path / "broker", config=f"{basic_config()}[management]\nport = 0\n{tls}", environment=ENVIRONMENT
    )
    with process.start():
        api = HttpBroker(process)
        assert api("GET", "/health/checks/certificate-expiration/0/years").status == 200
        for within in ("2/days", "1/weeks", "1/Months", "999999999/years"):
            reply = api("GET", f"/health/checks/certificate-expiration/{within}")
            assert (reply.status, reply.json["reason"]) == (503, "Certificates expiring")
            (listener,) = reply.json["expired"]
        assert listener["protocol"] == "amqp/ssl" and listener["certfile"] == str(cert)
        assert listener["cacertfile"] == str(authority.path)
        for name in ("certfile_expires_on", "cacertfile_expires_on"):
            (end,) = listener[name]
            left = datetime.fromisoformat(end).replace(tzinfo=UTC) - datetime.now(UTC)
            assert timedelta(hours=23) < left <= timedelta(days=1)


def test_unusable_certificates(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for path in (broken, tmp_path / "missing.pem"):
        (error,) = expiring(str(path), UNITS["days"])
        assert f"cannot read {path}" in error
    assert expiring(None, UNITS["days"]) == []


def test_reset_deletes_statistics_only(api: HttpBroker) -> None:
    for user in ("manager", "monitor"):
        assert api("DELETE", "/reset", user=user).status == 401
    assert api("DELETE", "/reset/missing").status == 404
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.declare_queue("reset")
        published = 0

        def rate() -> float:
            return float(api.get("/queues/%2F/reset")["message_stats"]["publish_details"]["rate"])

        def has_rate() -> bool:
            nonlocal published
            for _ in range(50):  # each time, since rates end after five seconds
                channel.publish(b"body", routing_key="reset")
            published += 50
            return rate() > 0

        wait_until(has_rate)
        assert api("PUT", "/queues/%2F/reset", {"durable": False}).status == 204  # lists are read again
        before = api.get("/overview")["message_stats"]["publish"]
        assert api("DELETE", f"/reset/{api.get('/overview')['node']}").status == 204
        assert rate() == 0
        found = api.get("/queues/%2F/reset")
        assert (found["messages"], found["message_stats"]["publish"]) == (published, published)
        assert api.get("/overview")["message_stats"]["publish"] == before
        assert api.get("/overview")["churn_rates"]["queue_created"] == 0
        assert api.get("/leveret/history?step=minute")["samples"] == []
        assert json.loads(api("DELETE", "/reset").content or "null") is None
        channel.delete_queue("reset")
