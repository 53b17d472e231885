"""Methods of Qpid's peers only: queries of exchanges and bindings, class execution, recovery with a response."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocols.amqp09.realms import Realm, Realms
from tests.protocols.amqp09.support import Channel, connect
from tests.protocols.support import Site

IN_REQUESTS_TOO = True


@pytest.fixture
def channel() -> Channel:
    """Queue `q` is bound to `x` by `key`, queue `other` is bound to `x` by `more`, and another exchange has no bindings."""
    channel = connect(Site()).channel()
    for name, arguments in (("x", {"alternate-exchange": "y"}), ("y", {})):
        channel.call(
            "exchange.declare", "exchange.declare-ok", exchange=name, type="topic", durable=name == "x", arguments=arguments
        )
    for name, key, arguments in (("q", "key", {}), ("other", "more", {"a": "1"})):
        channel.declare(name)
        channel.call("queue.bind", "queue.bind-ok", queue=name, exchange="x", routing_key=key, arguments=arguments)
    return channel


@pytest.mark.parametrize(
    ("exchange", "key", "queue", "code", "text"),
    [
        ("x", "", "", 0, ""),
        ("x", "key", "", 0, ""),
        ("x", "", "q", 0, ""),
        ("x", "key", "q", 0, ""),
        ("", "", "", 0, ""),
        ("", "q", "", 0, ""),
        ("", "", "q", 0, ""),
        ("", "q", "q", 0, ""),
        ("z", "key", "q", 1, "exchange 'z' not found"),
        ("x", "", "z", 2, "queue 'z' not found"),
        ("x", "key", "z", 2, "queue 'z' not found"),
        ("y", "", "", 3, "exchange 'y' has no bindings"),
        ("y", "", "q", 4, "queue 'q' is not bound to exchange 'y'"),
        ("x", "none", "", 5, "no queue is bound with routing key 'none' to exchange 'x'"),
        ("", "none", "", 5, "no queue is bound with routing key 'none' to exchange ''"),
        ("x", "more", "q", 6, "queue 'q' is not bound with routing key 'more' to exchange 'x'"),
        ("", "other", "q", 6, "queue 'q' is not bound with routing key 'other' to exchange ''"),
    ],
)
def test_exchange_bound(channel: Channel, exchange: str, key: str, queue: str, code: int, text: str) -> None:
    answer = channel.call("exchange.bound", "exchange.bound-ok", exchange=exchange, routing_key=key, queue=queue)
    assert answer == {"reply_code": code, "reply_text": text}


def test_an_exchange_that_lost_its_binding_has_none(channel: Channel) -> None:
    for name in ("q", "other"):
        channel.call("queue.delete", "queue.delete-ok", queue=name)
    assert channel.call("exchange.bound", "exchange.bound-ok", exchange="x")["reply_code"] == 3
    assert channel.call("exchange.bound", "exchange.bound-ok", exchange="")["reply_code"] == 3


def test_exchange_query(channel: Channel) -> None:
    found = channel.call("exchange.query", "exchange.query-ok", exchange="x")
    assert found == {"type": "topic", "durable": True, "not_found": False, "arguments": {"alternate-exchange": "y"}}
    found = channel.call("exchange.query", "exchange.query-ok", exchange="y")
    assert found == {"type": "topic", "durable": False, "not_found": False, "arguments": {}}
    found = channel.call("exchange.query", "exchange.query-ok", exchange="z")
    assert found == {"type": "", "durable": False, "not_found": True, "arguments": {}}
    assert channel.call("exchange.query", "exchange.query-ok", exchange="")["type"] == "direct"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"exchange": "x"}, set()),
        ({"exchange": "x", "queue": "q", "routing_key": "key"}, set()),
        ({"exchange": "x", "queue": "other", "arguments": {"a": "1"}}, set()),
        ({"exchange": "", "queue": "q", "routing_key": "q"}, set()),
        ({"exchange": "z", "queue": "q"}, {"exchange_not_found"}),
        ({"exchange": "z", "queue": "z"}, {"exchange_not_found", "queue_not_found"}),
        ({"exchange": "x", "queue": "z", "routing_key": "key"}, {"queue_not_found"}),
        ({"exchange": "y", "queue": "q"}, {"queue_not_matched"}),
        (
            {"exchange": "y", "queue": "q", "routing_key": "key", "arguments": {"a": "1"}},
            {"queue_not_matched", "key_not_matched", "args_not_matched"},
        ),
        ({"exchange": "x", "routing_key": "none"}, {"key_not_matched"}),
        ({"exchange": "x", "queue": "q", "arguments": {"a": "2"}}, {"args_not_matched"}),
    ],
    ids=[str(number) for number in range(11)],
)
def test_binding_query(channel: Channel, asked: dict[str, Any], expected: set[str]) -> None:
    answer = channel.call("binding.query", "binding.query-ok", **asked)
    assert len(answer) == 5
    assert {name for name, said in answer.items() if said} == expected


@pytest.mark.parametrize(
    "asked",
    [
        ("exchange.query", {"exchange": "data.x"}),
        ("binding.query", {"exchange": "data.x", "queue": "data.q"}),
    ],
    ids=["exchange", "binding"],
)
def test_queries_need_a_ticket_if_the_vhost_has_realms(asked: tuple[str, dict[str, Any]]) -> None:
    site = Site()
    site.vhost.declare_queue("data.q", None)
    site.protocols.amqp09.realms["/"] = Realms(
        {"/data": Realm("/data", r"data\..*", {"user": frozenset(("passive", "read"))})}
    )
    method, arguments = asked
    channel = connect(site).channel()
    for right in ("passive", "read"):
        ticket = channel.call("access.request", "access.request-ok", realm="/data", **{right: True})["ticket"]
        if right == "passive":
            channel.call(method, f"{method}-ok", ticket=ticket, **arguments)
    channel.send(method, ticket=ticket, **arguments)
    assert channel.refused() == 403
    other = connect(site).channel()
    other.send(method, **arguments)
    assert other.refused() == 403


def test_another_connections_exclusive_queue_cannot_be_queried(channel: Channel) -> None:
    channel.declare("mine", exclusive=True)
    other = connect(channel.client.site).channel()
    other.send("exchange.bound", exchange="", queue="mine")
    assert other.refused() == 405


def test_recover_sync_is_answered(channel: Channel) -> None:
    channel.publish()
    channel.consume()
    assert [item.redelivered for item in channel.deliveries()] == [False]
    channel.call("basic.recover-sync", "basic.recover-sync-ok", requeue=False)
    assert [item.redelivered for item in channel.deliveries()] == [True]
    channel.call("basic.recover-sync", "basic.recover-sync-ok", requeue=True)
    assert [item.redelivered for item in channel.deliveries()] == [True]
    channel.call("tx.select", "tx.select-ok")
    channel.send("basic.recover-sync", requeue=True)
    assert channel.refused() == 406


def test_class_execution_has_no_answers(channel: Channel) -> None:
    channel.send("execution.flush")
    channel.send("execution.complete", mark=7)
    channel.call("channel.ping", "channel.ok")
    assert [command.name for command in channel.client.received] == ["channel.pong"]  # type: ignore[attr-defined]
