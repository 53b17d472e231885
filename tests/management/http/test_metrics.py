"""Metrics in Prometheus's format: names, labels and values of a real broker."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leveret import sync
from leveret.client import Returned
from leveret.config import Config
from leveret.management.http.cache import Cache
from leveret.management.http.control import Control, Row
from leveret.management.http.metrics.objects import escape
from leveret.management.http.metrics.totals import GlobalTotals, split
from leveret.management.http.objects import CHANNEL, QUEUE, VHOST
from leveret.node.http_endpoint import HttpEndpoint
from tests.management.http.client import HttpBroker, send
from tests.management.http.scrapes import Samples, metrics_port, promtool, scrape
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from starlette.types import Message, Scope

ODD = 'odd "name" \\n and ü€'
# A query for all families of `/metrics/detailed` that Leveret has.
ALL = "&".join(
    f"family={name}"
    for name in (
        "connection_churn_metrics",
        "node_coarse_metrics",
        "node_metrics",
        "queue_coarse_metrics",
        "queue_consumer_count",
        "queue_metrics",
        "queue_delivery_metrics",
        "queue_exchange_metrics",
        "exchange_metrics",
        "channel_metrics",
        "channel_exchange_metrics",
        "channel_queue_metrics",
        "channel_queue_exchange_metrics",
        "connection_coarse_metrics",
        "connection_metrics",
        "vhost_status",
        "exchange_bindings",
        "exchange_names",
        "stream_consumer_metrics",
    )
)
ENDPOINTS = {"": "aggregated", "/per-object": "per-object", f"/detailed?{ALL}": "detailed", "/detailed": "detailed"}


def samples(api: HttpBroker, path: str = "") -> Samples:
    return Samples(scrape(api.process, path))


def samples_now(api: HttpBroker) -> Samples:
    """Scrape after a change through the API, which no scrape may be older than."""
    api("PUT", "/queues/%2F/scraped", {})
    return samples(api)


def scrape_until(api: HttpBroker, condition: Callable[[Samples], bool], path: str = "") -> Samples:
    """Scrape until a condition holds, and return that scrape."""

    def found() -> Samples | None:
        now = samples(api, path)
        return now if condition(now) else None

    return wait_until(found, "the metrics")


@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_scrape_has_one_identity(api: HttpBroker, path: str) -> None:
    found = samples(api, path)
    (labels,) = found.find("rabbitmq_identity_info")
    node = api.get("/overview")["node"]
    assert labels.pop("rabbitmq_cluster_permanent_id")
    assert labels == {"rabbitmq_node": node, "rabbitmq_cluster": node, "rabbitmq_endpoint": ENDPOINTS[path]}
    (labels,) = found.find("rabbitmq_build_info")
    assert labels["product_name"] == "Leveret" and labels["rabbitmq_version"].startswith("4.")
    assert {"erlang_version", "prometheus_plugin_version", "prometheus_client_version", "product_version"} < labels.keys()


@pytest.mark.parametrize("path", ENDPOINTS)
def test_promtool_accepts_the_text(api: HttpBroker, path: str) -> None:
    promtool("--version")  # skips the test before it declares a queue
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.declare_queue(ODD)
        channel.publish(b"body", routing_key=ODD)
        wait_until(lambda: samples(api, "/per-object").find("rabbitmq_queue_messages", queue=ODD))
        promtool("check", "metrics", text=scrape(api.process, path))
        channel.delete_queue(ODD)


def test_keys_and_dropped_duplicates(api: HttpBroker) -> None:
    arguments: dict[str, Any] = {"x-deduplication-window": 60_000, "x-deduplication-header": "id"}
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.declare_exchange("unique", "fanout", arguments=arguments)
        channel.declare_queue("unique", arguments=arguments)
        channel.bind_queue("unique", "unique")
        for exchange in ("unique", ""):
            for key in ("a", "b", "a", "a"):
                channel.publish(b"x", exchange=exchange, routing_key="unique", headers={"id": key})
        dropped_from = {"queue": 4, "exchange": 2}
        found = scrape_until(
            api,
            lambda now: all(now.sum(f"leveret_{kind}_dropped_duplicates_total") == n for kind, n in dropped_from.items()),
            "/per-object",
        )
        for kind, dropped in dropped_from.items():
            labels = {"vhost": "/", kind: "unique"}
            assert found.value(f"leveret_{kind}_dropped_duplicates_total", **labels) == dropped
            assert found.value(f"leveret_{kind}_deduplication_keys", **labels) == 2
            assert len(found.find(f"leveret_{kind}_deduplication_keys")) == 1  # others do not have the metric
            path = f"/{kind}s/%2F/unique"
            listed = [row for row in api.get(f"/{kind}s/%2F") if row["name"] == "unique"]
            for row in (api.get(path), *listed):
                assert (row["deduplication_keys"], row["dropped_duplicates"]) == (2, dropped)
        assert "dropped_duplicates" not in api.get("/exchanges/%2F/amq.topic")
        channel.delete_exchange("unique")
        channel.delete_queue("unique")


def test_metrics_of_objects_follow_their_counters(api: HttpBroker) -> None:
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.declare_exchange("measured", "topic")
        channel.declare_queue(ODD)
        channel.bind_queue(ODD, "measured", "k.#")
        for _ in range(5):
            channel.publish(b"x" * 200, exchange="measured", routing_key="k.1")
        message = channel.get(ODD)
        assert message is not None
        message.ack()
        with channel.consume(ODD, prefetch=2) as consumer:
            first = next(consumer)
            delivered = "rabbitmq_queue_messages_delivered_ack_total"
            found = scrape_until(api, lambda now: now.sum(delivered, queue=ODD) == 2, "/per-object")
            queue = {"vhost": "/", "queue": ODD}
            for name, value in {
                "messages_ready": 2,
                "messages_unacked": 2,
                "messages": 4,
                "consumers": 1,
                "messages_ready_bytes": 400,
                "messages_published_total": 5,
                "get_ack_total": 1,
                "get_total": 0,
                "messages_delivered_total": 0,
                "messages_acked_total": 1,
                "messages_redelivered_total": 0,
                "get_empty_total": 0,
            }.items():
                assert found.value(f"rabbitmq_queue_{name}", **queue) == value, name
            assert found.value("leveret_queue_memory_bytes", **queue) > 0
            info = {"queue_type": "rabbit_classic_queue", "membership": "leader"}
            assert found.value("rabbitmq_queue_info", **queue, **info) == 1
            assert found.value("rabbitmq_exchange_messages_published_total", vhost="/", exchange="measured") == 5
            assert found.value("leveret_exchange_messages_routed_total", vhost="/", exchange="measured") == 5
            (mine,) = [row for row in api.get("/channels") if row["messages_unacknowledged"] == 2]
            labels = {"channel": mine["name"]}
            assert found.value("rabbitmq_channel_messages_published_total", **labels) == 5
            assert found.value("rabbitmq_channel_messages_unacked", **labels) == 2
            assert found.value("rabbitmq_channel_get_ack_total", **labels) == 1
            labels = {"connection": mine["connection_details"]["name"]}
            assert found.value("rabbitmq_connection_incoming_bytes_total", **labels) > 1000
            assert found.value("rabbitmq_connection_channels", **labels) == 1
            first.ack()
        channel.delete_queue(ODD)
        channel.delete_exchange("measured")


def test_totals_by_protocol_and_their_sums(api: HttpBroker) -> None:
    before = samples_now(api)
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.declare_queue("totals")
        for _ in range(10):
            channel.publish(b"x" * 2000, routing_key="totals")
        with pytest.raises(Returned):
            channel.publish(b"body", routing_key="totals.missing", mandatory=True)
        channel.publish(b"body", routing_key="totals.missing")
    with (
        sync.connect(api.process.url(), protocol="1.0") as other,
        other.session() as session,
        session.consume("totals", prefetch=4) as consumer,
    ):
        for _ in range(4):
            next(consumer).ack()

    def gained(now: Samples, name: str, **labels: str) -> float:
        return now.sum(name, **labels) - before.sum(name, **labels)

    total = "rabbitmq_global_messages_%s_total"
    after = scrape_until(api, lambda now: gained(now, total % "acknowledged") == 4)
    for name, value in {
        "received": 12,
        "received_confirm": 12,
        "confirmed": 12,
        "routed": 10,
        "unroutable_returned": 1,
        "unroutable_dropped": 1,
    }.items():
        assert gained(after, total % name) == value, name
    assert gained(after, total % "delivered") == gained(after, total % "delivered_consume_manual_ack") >= 4
    for name in ("messages_published", "messages_confirmed", "messages_delivered_ack", "messages_acked"):
        assert gained(after, f"rabbitmq_channel_{name}_total") > 0, "counters include closed channels"
    sizes = "rabbitmq_message_size_bytes"
    assert gained(after, f"{sizes}_count") == 12 and 20_000 <= gained(after, f"{sizes}_sum") < 30_000
    api("DELETE", "/queues/%2F/totals")
    wait_until(lambda: not samples(api, "/per-object").find("rabbitmq_queue_messages", queue="totals"))
    assert samples(api).value(total % "delivered", protocol="stream", queue_type="rabbit_stream_queue") == 0
    for name in ("queue_messages_acked_total", "queue_messages_published_total"):
        assert samples(api).value(f"rabbitmq_{name}") >= after.value(f"rabbitmq_{name}"), "they include deleted queues"


def test_bounds_of_message_sizes_are_written_as_dashboards_expect(api: HttpBroker) -> None:
    text = scrape(api.process)
    bounds = re.findall(r'rabbitmq_message_size_bytes_bucket\{le="([^"]+)",protocol="amqp091"\}', text)
    assert bounds == ["100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf"]


def test_own_metrics(api: HttpBroker) -> None:
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.declare_queue("logged", durable=True)
        before = samples_now(api)
        for _ in range(20):
            channel.publish(b"x" * 1000, routing_key="logged", persistent=True)
        written = "leveret_log_written_bytes_total"
        after = scrape_until(api, lambda now: now.value(written) - before.value(written) >= 20_000)
        channel.delete_queue("logged")
    assert after.value("leveret_commit_seconds_count") > before.value("leveret_commit_seconds_count")
    assert after.value("leveret_commit_seconds_sum") > before.value("leveret_commit_seconds_sum")
    assert after.value("leveret_longest_turn_seconds_count") > 0
    assert after.value("leveret_event_loop_cpu_seconds_total") > 0
    assert after.value("leveret_log_file_bytes") > 0 and after.value("leveret_log_commits_total") > 0
    assert [after.value("leveret_log_state", state=state) for state in ("ok", "full", "failed")] == [1, 0, 0]
    assert after.value("leveret_resident_memory_bytes") == after.value("rabbitmq_process_resident_memory_bytes") > 1 << 20


def test_detailed_metrics_are_those_of_the_families_and_vhosts(api: HttpBroker) -> None:
    with sync.connect(api.process.url()) as connection:
        connection.channel().declare_queue("detailed", exclusive=True)
        wait_until(lambda: api.get("/queues/%2F/detailed"))
        own = {"rabbitmq_build_info", "rabbitmq_identity_info"}
        found = samples(api, "/detailed?family=queue_coarse_metrics&family=queue_consumer_count&vhost=%2F&vhost=none")
        assert found.names() - own == {
            f"rabbitmq_detailed_queue_{name}" for name in ("messages", "messages_ready", "messages_unacked", "consumers")
        }
        assert found.find("rabbitmq_detailed_queue_messages", queue="detailed") == [{"vhost": "/", "queue": "detailed"}]
        assert samples(api, "/detailed?family=queue_coarse_metrics&vhost=none").names() == own
        assert samples(api, "/detailed?family=unknown").names() == own
    found = samples(api, "/detailed?family=vhost_status&family=exchange_bindings&family=exchange_names")
    assert found.value("rabbitmq_cluster_vhost_status", vhost="/") == 1
    labels = {"vhost": "/", "exchange": "amq.topic", "type": "topic"}
    assert found.value("rabbitmq_cluster_exchange_bindings", **labels) == 0
    assert found.value("rabbitmq_cluster_exchange_name", **labels) == 1
    churn = samples(api, "/detailed?family=connection_churn_metrics")
    assert churn.value("rabbitmq_detailed_connections_opened_total") > 0


def test_requests(api: HttpBroker) -> None:
    port = metrics_port(api.process)
    plain = send(port, "GET", "/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    compressed = send(port, "GET", "/metrics/per-object", headers={"Accept-Encoding": "gzip"})
    assert compressed.headers["content-encoding"] == "gzip" and Samples(compressed.content.decode()).families
    assert send(port, "HEAD", "/metrics").content == b""
    assert send(port, "POST", "/metrics").status == 405
    assert send(port, "GET", "/metrics/none").status == 404 and send(port, "GET", "/api/overview").status == 404
    assert send(port, "GET", "/metrics/detailed?family=" + "x" * 20_000).status == 400
    assert send(api.port, "GET", "/metrics").status == 404, "the API's port has no metrics"


def test_a_configured_port_in_use_stops_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = LeveretProcess(
            tmp_path,
            config=f"{basic_config()}[management]\nport = 0\nhost = '127.0.0.1'\nmetrics_port = {taken.getsockname()[1]}\n",
            environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
        )
        del process.defaults["LEVERET_MANAGEMENT__METRICS_PORT"]
        with pytest.raises(
            RuntimeError, match=r"exit code 1(?s:.)*metrics cannot listen on port .*management\.metrics_port"
        ):
            process.start()


def test_metrics_can_be_disabled(tmp_path: Path) -> None:
    process = LeveretProcess(
        tmp_path,
        config=f"{basic_config()}[management]\nport = 0\nmetrics_enabled = false\n",
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        assert '"metrics": []' in (tmp_path / "ready.json").read_text()
        assert HttpBroker(process).get("/overview")


def test_labels_are_escaped() -> None:
    for name in ("plain", ODD, "two\nlines", "ends with \\", '"', "ü€\U0001f407"):
        assert Samples(f'# TYPE one gauge\none{{name="{escape(name)}"}} 1\n').find("one") == [{"name": name}]
    assert escape("bytes \udcff") == "bytes \\\\udcff"


# The totals by protocol and queue type


def test_parts_add_up_to_the_total() -> None:
    assert split(10, {"a": 1, "b": 2}, "c") == {"a": 3, "b": 7}
    assert split(10, {"a": 0}, "c") == {"c": 10}
    assert split(0, {"a": 5}, "c") == {"a": 0}


def increments(**counters: int) -> dict[str, int]:
    return {**dict.fromkeys(VHOST.names, 0), **counters}


def counted(names: tuple[str, ...], **counters: int) -> list[int]:
    return [counters.get(name, 0) for name in names]


def test_totals_follow_protocols_and_types() -> None:
    totals = GlobalTotals()
    totals.channel_counted(1, "AMQP 0-9-1", counted(CHANNEL.counters, publish=4))
    totals.received(1, 8000)
    totals.channel_counted(2, "AMQP 1.0", counted(CHANNEL.counters, deliver=6))
    totals.queue_counted("stream", counted(QUEUE.counters, deliver=6))
    totals.add([increments(publish=4, deliver=6)])
    assert totals.by_protocol["publish", "amqp091"] == 4
    assert totals.by_type["deliver", "amqp10", "rabbit_stream_queue"] == 6
    assert (totals.sizes["amqp091"].counts[2], totals.sizes["amqp091"].total) == (4, 8000)
    totals.add([increments(publish=1)])
    assert totals.by_protocol["publish", "amqp091"] == 5, "a channel that was closed within the second"
    totals.channel_counted(1, "AMQP 0-9-1", counted(CHANNEL.counters, publish=4))
    totals.discard()
    totals.add([increments()])
    assert totals.by_protocol["publish", "amqp091"] == 5


def test_expected_confirms_never_decrease() -> None:
    totals = GlobalTotals()
    totals.channel_counted(1, "AMQP 0-9-1", counted(CHANNEL.counters, confirm=3))
    totals.add([increments(confirm=3)])
    assert totals.received_confirm("amqp091", 2) == 5
    assert totals.received_confirm("amqp091", 0) == 5


def test_messages_are_counted_once() -> None:
    """Whether this process, or its copy of the broker's objects, begins again; and after a restart of the broker."""
    received = []
    cache = Cache(Control(Path("/nonexistent")))
    for is_first, uptime, published in (
        (True, 0.5, 3),  # the broker has just started, with this process
        (False, 1.5, 5),
        (True, 60.0, 9),  # the copy begins again
        (False, 61.0, 10),
        (True, 0.5, 2),  # the broker has restarted
    ):
        process = {"memory": 1, "pid": 1, "uptime": uptime, "data_dir": "/nonexistent"}
        cache.apply(
            [
                ["begin", None, is_first],
                ["vhost.sample", "/", [published, *[0] * 14]],
                ["node", None, {"process": process, "alarm": ""}],
                ["end", None, None],
            ]
        )
        received.append(cache.messages.by_protocol["publish", "amqp091"])
    assert received == [3, 5, 5, 6, 8]


def test_a_process_that_starts_later_counts_new_messages_only() -> None:
    cache = Cache(Control(Path("/nonexistent")))
    for is_first, published in ((True, 100), (False, 101)):
        process = {"memory": 1, "pid": 1, "uptime": 60.0, "data_dir": "/nonexistent"}
        node = {"process": process, "alarm": ""}
        sample = ["vhost.sample", "/", [published, *[0] * 14]]
        cache.apply([["begin", None, is_first], sample, ["node", None, node], ["end", None, None]])
    assert cache.messages.by_protocol["publish", "amqp091"] == 1


def test_the_number_of_scrapes_at_a_time_is_limited() -> None:
    from leveret.management.http.metrics.endpoint import Metrics
    from leveret.management.http.places import SCRAPES

    async def no_rows() -> list[Row]:
        return []

    async def statuses() -> list[int]:
        found = []
        closed = asyncio.Event()

        async def receive() -> Message:
            await closed.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                found.append(message["status"])
                if message["status"] == 404:
                    await closed.wait()  # the client does not read

        settings = HttpEndpoint(Config(), Path("/nonexistent")).settings()
        metrics = Metrics(Cache(Control(Path(settings.control))), settings, list, no_rows, no_rows)
        scope: Scope = {"type": "http", "method": "GET", "path": "/none", "query_string": b"", "headers": []}
        addresses = ["10.0.0.1"] * SCRAPES.of_address + ["10.0.0.2"] * SCRAPES.of_address
        slow = [asyncio.create_task(metrics({**scope, "client": (address, 1)}, receive, send)) for address in addresses]
        while len(found) < SCRAPES.total:
            await asyncio.sleep(0)
        await metrics({**scope, "client": ("10.0.0.1", 1)}, receive, send)
        await metrics({**scope, "client": ("10.0.0.3", 1)}, receive, send)
        closed.set()
        await asyncio.gather(*slow)
        await metrics(scope, receive, send)
        return found

    assert asyncio.run(statuses()) == [404] * SCRAPES.total + [429, 503, 404]
