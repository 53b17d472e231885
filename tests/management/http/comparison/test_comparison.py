"""Each endpoint beside RabbitMQ's: the same requests, and the statuses, keys, types, values and headers of the answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret import sync
from tests.management.http.client import HttpApi, HttpBroker, HttpRabbit, Reply
from tests.management.http.comparison.compare import differences
from tests.management.http.comparison.differences import DIFFERENCES
from tests.management.http.comparison.requests import SETUP, Call, all_calls
from tests.support.broker import Broker, LeveretProcess, free_port, leveret_only
from tests.support.polling import wait_until
from tests.support.rabbitmq import RabbitProcess, available

PLUGINS = (
    "rabbitmq_management",
    "rabbitmq_federation_management",
    "rabbitmq_shovel_management",
    "rabbitmq_stream_management",
    "rabbitmq_top",
    "rabbitmq_tracing",
)


@pytest.fixture
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, HttpApi]]:
    if not available():
        pytest.skip("rabbitmq-server is not installed")
    port = free_port()
    settings = (
        f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1\n"
        f"stream.listeners.tcp.default = 127.0.0.1:{free_port()}\n"
    )
    process = RabbitProcess(tmp_path_factory.mktemp("rabbit"), PLUGINS, settings)
    with process.start():
        yield process, HttpRabbit(port)


@pytest.fixture
def leveret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, HttpApi]]:
    leveret_only("the HTTP API")
    process = LeveretProcess(
        tmp_path_factory.mktemp("leveret"),
        config="[management]\nport = 0\n",
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        yield process, HttpBroker(process)
        process.check_log()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_answers_differ_only_as_intended(leveret: tuple[Broker, HttpApi], rabbit: tuple[Broker, HttpApi]) -> None:
    (our_process, ours), (their_process, theirs) = leveret, rabbit
    nodes = (ours.get("/overview")["node"], theirs.get("/overview")["node"])
    with sync.connect(our_process.url()) as first, sync.connect(their_process.url()) as second:
        for connection in (first, second):
            channel = connection.channel()
            channel.declare_queue("watched")
            channel.publish(b"body", routing_key="watched")
            channel.consume("watched", prefetch=1).__enter__()
        for call in SETUP:
            for api in (ours, theirs):
                assert send(api, call, nodes).status in (201, 204), call
        # RabbitMQ omits statistics until they are first emitted.
        wait_until(lambda: has_statistics(theirs) and has_statistics(ours), "statistics")
        found = [
            (str(call), finding)
            for call in all_calls()
            for finding in differences(send(ours, call, nodes), send(theirs, call, nodes), nodes)
        ]
    unintended = [
        f"{request}: {finding}"
        for request, finding in found
        if not any(difference.covers(request, finding) for difference in DIFFERENCES)
    ]
    assert not unintended, "\n".join(["theirs | ours", *unintended])
    unused = [entry.text for entry in DIFFERENCES if not any(entry.covers(*difference) for difference in found)]
    assert not unused, "\n".join(["differences that no answer has", *unused])


def has_statistics(api: HttpApi) -> bool:
    """Return whether a broker shows all keys of the objects that have some: RabbitMQ adds them later."""
    queues = {queue["name"]: queue for queue in api.get("/queues")}
    return (
        all("memory" in queue for queue in queues.values())
        and "messages_dlx" in queues["quorum"]
        and all(queues[name].get("idle_since") for name in ("orders", "empty", "brief", "a/b c"))
        and "message_stats" in queues["watched"]
        and bool(api.get("/overview")["contexts"])
        and any(channel.get("idle_since") for channel in api.get("/channels"))
    )


def send(api: HttpApi, call: Call, nodes: tuple[str, str]) -> Reply:
    node = nodes[0] if isinstance(api, HttpBroker) else nodes[1]
    path = call.path.replace("{node}", node)
    return api(call.method, path, call.body, user=call.user, password=call.password, headers=call.headers, raw=call.raw)
