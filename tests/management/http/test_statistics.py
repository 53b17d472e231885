"""Statistics over HTTP: counters, rates and samples of a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from leveret import sync
from leveret.client import Returned
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

WINDOWS = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5&data_rates_age=60&data_rates_incr=5"


def named(rows: list[Any], name: str) -> Any:
    return next((row for row in rows if row["name"] == name), None)


def counts(stats: dict[str, Any]) -> dict[str, int]:
    """Return the counters of `message_stats` that are not 0."""
    return {key: value for key, value in stats.items() if not key.endswith("_details") and value}


def within(condition: Callable[[], Any]) -> Any:
    return wait_until(condition, "statistics")


def test_counters_and_rates_of_all_objects(api: HttpBroker) -> None:
    totals(api)  # statistics of earlier messages are not late
    before = api.get("/overview")["message_stats"]
    vhost = api.get("/vhosts/%2F")["message_stats"]
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.declare_exchange("counted", "topic")
        for name in ("counted.a", "counted.b"):
            channel.declare_queue(name)
            channel.bind_queue(name, "counted", "k.#")
        for _ in range(10):
            channel.publish(b"body", exchange="counted", routing_key="k.1")
        for _ in range(3):
            channel.publish(b"body", exchange="counted", routing_key="other", mandatory=False)
        with channel.consume("counted.a", prefetch=10) as consumer:
            deliveries = [next(consumer) for _ in range(10)]
            deliveries[0].ack()
            deliveries[3].ack(multiple=True)
            deliveries[4].reject(requeue=True)
            again = next(consumer)
            assert again.redelivered
            again.ack()
            within(lambda: api.get("/queues/%2F/counted.a")["message_stats"]["ack"] == 5)
            assert counts(api.get("/queues/%2F/counted.a")["message_stats"]) == {
                "publish": 10,
                "deliver": 11,
                "deliver_get": 11,
                "redeliver": 1,
                "ack": 5,
            }
            mine = [row for row in api.get("/channels") if row["messages_unacknowledged"] == 5]
            found = counts(api.get(f"/channels/{mine[0]['name'].replace(' ', '%20').replace('>', '%3E')}")["message_stats"])
            assert found.pop("confirm", 13) == 13
            assert found.pop("drop_unroutable", 0) + found.pop("return_unroutable", 0) == 3
            assert found == {"publish": 13, "deliver": 11, "deliver_get": 11, "redeliver": 1, "ack": 5}
            mine = [row for row in api.get("/connections") if row["name"] == mine[0]["connection_details"]["name"]]
            assert mine[0]["recv_oct"] > 300 and mine[0]["recv_cnt"] > 3 and mine[0]["send_cnt"] > 3
            for delivery in deliveries[5:]:
                delivery.ack()
        for _ in range(2):
            api("POST", "/queues/%2F/counted.b/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
        exchange = api.get("/exchanges/%2F/counted")["message_stats"]
        assert counts(exchange) == {"publish_in": 13, "publish_out": 20}
    after = within(lambda: (found := api.get("/overview")["message_stats"])["ack"] - before["ack"] >= 12 and found)
    for old, new in ((before, after), (vhost, api.get("/vhosts/%2F")["message_stats"])):
        gained = {key: new[key] - old[key] for key in ("publish", "deliver", "redeliver", "ack")}
        assert gained == {"publish": 13, "deliver": 11, "redeliver": 1, "ack": 12}
        assert new["drop_unroutable"] + new["return_unroutable"] - old["drop_unroutable"] - old["return_unroutable"] == 3
    with sync.connect(api.process.url()) as connection:
        publisher = connection.channel().publisher("counted", "k.1")

        def has_rates() -> bool:
            publisher.publish(b"body")  # each time, since rates end after five seconds
            queue, exchange = named(api.get("/queues"), "counted.a"), named(api.get("/exchanges"), "counted")
            details = (queue["message_stats"]["publish_details"], exchange["message_stats"]["publish_in_details"])
            return all(found["rate"] > 0 for found in (*details, api.get("/overview")["message_stats"]["publish_details"]))

        within(has_rates)
    for name in ("counted.a", "counted.b"):
        api("DELETE", f"/queues/%2F/{name}")
    kept = api.get("/overview")["message_stats"]
    assert kept["publish"] >= after["publish"] and kept["deliver"] >= after["deliver"]


def totals(api: HttpBroker) -> dict[str, int]:
    """Return the counters of the vhost, exact after a write."""
    api("PUT", "/queues/%2F/totals", {})
    return {key: value for key, value in api.get("/vhosts/%2F")["message_stats"].items() if isinstance(value, int)}


def gained(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {key: after[key] - before[key] for key in after if after[key] != before[key]}


def uncommitted(api: HttpBroker) -> dict[str, int]:
    """Return what the only transactional channel has published, and what it has not committed."""
    (row,) = [row for row in api.get("/channels") if row["transactional"]]
    counts = {name: row[f"{name}_uncommitted"] for name in ("messages", "acks")}
    return {**counts, "published": row["message_stats"]["publish"]}


def test_transactions_count_when_they_commit(api: HttpBroker) -> None:
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel(transactional=True)
        channel.declare_queue("counted.tx")
        before = totals(api)
        channel.publish(b"body", routing_key="counted.tx")
        assert gained(before, totals(api)) == {}
        assert uncommitted(api) == {"messages": 1, "acks": 0, "published": 0}
        channel.tx_rollback()
        assert gained(before, totals(api)) == {}
        assert uncommitted(api) == {"messages": 0, "acks": 0, "published": 0}
        channel.publish(b"body", routing_key="counted.tx")
        channel.tx_commit()
        assert gained(before, totals(api)) == {"publish": 1}
        assert uncommitted(api) == {"messages": 0, "acks": 0, "published": 1}
        message = channel.get("counted.tx")
        assert message is not None
        message.ack()
        within(lambda: uncommitted(api) == {"messages": 0, "acks": 1, "published": 1})
        channel.tx_commit()
        assert gained(before, totals(api)) == {"publish": 1, "get": 1, "deliver_get": 1, "ack": 1}
    api("DELETE", "/queues/%2F/counted.tx")


def test_returned_and_dropped_messages(api: HttpBroker) -> None:
    before = totals(api)
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        with pytest.raises(Returned):
            channel.publish(b"body", routing_key="counted.missing", mandatory=True)
        channel.publish(b"body", routing_key="counted.missing")
        found = gained(before, totals(api))
    assert found == {"publish": 2, "confirm": 2, "return_unroutable": 1, "drop_unroutable": 1}


def test_amqp10_sessions_count_like_channels(api: HttpBroker) -> None:
    before = totals(api)
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session() as session:
        session.declare_queue("counted.10")
        for _ in range(3):
            session.publish(b"body", "counted.10")
        with pytest.raises(Returned):
            session.publish(b"body", "counted.missing", "amq.direct", mandatory=True)
        with session.consume("counted.10", prefetch=2) as consumer:
            next(consumer).ack()
            next(consumer).ack()
            within(lambda: gained(before, totals(api)).get("ack") == 2)
            (stats,) = [row["message_stats"] for row in api.get("/channels") if row["message_stats"]["ack"] == 2]
            assert (stats["deliver"], stats["deliver_no_ack"]) == (3, 0)
        found = gained(before, totals(api))
    assert found == {"publish": 4, "deliver": 3, "deliver_get": 3, "ack": 2, "return_unroutable": 1}
    api("DELETE", "/queues/%2F/counted.10")


def test_samples(api: HttpBroker) -> None:
    with sync.connect(api.process.url(), name="sampling") as connection:
        channel = connection.channel()

        def sampled() -> Any:
            """Publish, and return the queue within the five seconds of its rate, unless the machine is too slow."""
            began = time.monotonic()
            api("DELETE", "/queues/%2F/sampled")
            channel.declare_queue("sampled")
            for _ in range(20):
                channel.publish(b"body", routing_key="sampled")
            while True:
                row = api.get(f"/queues/%2F/sampled?{WINDOWS}")
                details, now = row["messages_details"], time.time()
                rows = api.get(f"/connections?{WINDOWS}")
                mine = next((row for row in rows if row["user_provided_name"] == "sampling"), None)
                if time.monotonic() - began > 4:
                    return None
                is_sampled = details["samples"][0]["sample"] == 20 and details["rate"]
                if is_sampled and mine is not None and mine["recv_oct_details"]["rate"]:
                    return row, mine, now

        row, mine, now = within(sampled)
        for details in (row["messages_details"], row["message_stats"]["publish_details"]):
            assert len(details["samples"]) == 13
            newest, oldest = details["samples"][0], details["samples"][-1]
            assert (newest["sample"], oldest["sample"]) == (20, 0)
            assert newest["timestamp"] - oldest["timestamp"] == 60_000
            assert abs(newest["timestamp"] / 1000 - now) < 5
            assert details["avg_rate"] == pytest.approx(20 / 60)
            assert 0 < details["avg"] <= 20
            assert details["rate"] == 4.0
        assert len(mine["recv_oct_details"]["samples"]) == 13
        overview = api.get(f"/overview?{WINDOWS}")
        assert len(overview["queue_totals"]["messages_details"]["samples"]) == 13
        assert len(overview["message_stats"]["publish_details"]["samples"]) == 13
    (node,) = api.get("/nodes?node_stats_age=60&node_stats_incr=10")
    assert len(node["mem_used_details"]["samples"]) == 7 and node["mem_used_details"]["samples"][0]["sample"] > 1 << 20
    api("DELETE", "/queues/%2F/sampled")


@pytest.mark.parametrize(
    "query", ["lengths_age=x&lengths_incr=5", "msg_rates_age=60&msg_rates_incr=0", "data_rates_age=99999&data_rates_incr=1"]
)
def test_invalid_windows(api: HttpBroker, query: str) -> None:
    for path in ("/queues", "/overview"):
        reply = api("GET", f"{path}?{query}")
        assert reply.status == 400 and "_age" in reply.json["reason"]


def test_totals_after_the_deletion_of_a_vhost(api: HttpBroker) -> None:
    """The messages of its queues are no longer counted, and never twice."""
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    before = api.get("/overview")["queue_totals"]["messages"]
    assert api("PUT", "/vhosts/totals", {}).status == 201
    assert api("PUT", "/users/totals", {"password": "totals", "tags": "administrator"}).status == 201
    assert api("PUT", "/permissions/totals/totals", everything).status == 201
    assert api("PUT", "/queues/totals/q", {"durable": True}, user="totals").status == 201
    message = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    assert api("POST", "/exchanges/totals/amq.default/publish", message, user="totals").json == {"routed": True}
    within(lambda: api.get("/overview")["queue_totals"]["messages"] == before + 1)
    assert api("DELETE", "/vhosts/totals").status == 204
    assert api("DELETE", "/users/totals").status == 204
    within(lambda: named(api.get("/queues"), "q") is None)
    assert api.get("/overview")["queue_totals"]["messages"] == before


def test_a_vhost_that_is_added_again_counts_from_0(api: HttpBroker) -> None:
    message = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    assert api("PUT", "/users/again", {"password": "again", "tags": "administrator"}).status == 201

    def counted() -> tuple[int, int, float]:
        found = api.get("/vhosts/again")
        stats = found["message_stats"]
        return found["messages"], stats["publish"], stats["publish_details"]["rate"]

    for _ in range(3):
        # The user who adds a vhost may use it.
        assert api("PUT", "/vhosts/again", {}, user="again").status == 201
        assert api("PUT", "/queues/again/q", {"durable": True}, user="again").status == 201
        for number in range(2):
            assert api("POST", "/exchanges/again/amq.default/publish", message, user="again").json == {"routed": True}
            assert counted()[:2] == (number + 1, number + 1)
        assert api("DELETE", "/vhosts/again").status == 204
        assert api("PUT", "/vhosts/again", {}).status == 201
        assert counted() == (0, 0, 0.0)
        assert api("DELETE", "/vhosts/again").status == 204
    assert api("DELETE", "/users/again").status == 204


@pytest.mark.slow
def test_lists_with_too_many_samples(api: HttpBroker) -> None:
    for number in range(30):
        assert api("PUT", f"/queues/%2F/sampled{number}", {}).status == 201
    query = "msg_rates_age=3599&msg_rates_incr=1"
    reply = api("GET", f"/queues?page=1&{query}")
    assert reply.status == 400 and "samples of each statistic; expected at most 65000" in reply.json["reason"]
    assert api("GET", "/queues?page=1&name=sampled1&msg_rates_age=60&msg_rates_incr=1").status == 200
    rows = api.get(f"/queues?{query}&columns=name,message_stats.publish_details")  # sent in parts
    assert all(len(row["message_stats"]["publish_details"]["samples"]) == 3600 for row in rows)
    for number in range(30):
        assert api("DELETE", f"/queues/%2F/sampled{number}").status == 204


def test_sorting_by_rate(api: HttpBroker) -> None:
    api.get("/overview")  # queues that the first look at the broker finds have no rates yet
    counts = {"rated.low": 5, "rated.none": 0, "rated.high": 50}
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        for name in counts:
            channel.declare_queue(name)

        def sorted_by(key: str, *, reverse: bool = False) -> list[str]:
            path = f"/queues?page=1&name=rated&columns=name&sort={key}&sort_reverse={str(reverse).lower()}"
            return [row["name"] for row in api.get(path)["items"]]

        def rates_are_sorted() -> bool:
            for name, count in counts.items():  # each time, since rates end after five seconds
                for _ in range(count):
                    channel.publish(b"body", routing_key=name)
            found = sorted_by("message_stats.publish_details.rate", reverse=True)
            return found == ["rated.high", "rated.low", "rated.none"]

        within(rates_are_sorted)
        for key in ("messages", "message_stats.publish"):
            assert sorted_by(key) == ["rated.none", "rated.low", "rated.high"]
    for name in counts:
        api("DELETE", f"/queues/%2F/{name}")


def test_lists_are_never_behind_a_write(api: HttpBroker) -> None:
    for number in range(10):
        assert api("PUT", f"/queues/%2F/written{number}", {}).status == 201
        assert named(api.get("/queues"), f"written{number}")
        assert api("DELETE", f"/queues/%2F/written{number}").status == 204
        assert not named(api.get("/queues"), f"written{number}")
    churn = api.get("/overview")["churn_rates"]
    assert churn["queue_created"] >= 10 and churn["queue_deleted"] >= 10


def test_gets_with_and_without_acknowledgement_have_rates_of_their_own(api: HttpBroker) -> None:
    with sync.connect(api.process.url()) as connection:

        def is_shown(row: Any) -> bool:
            stats = row["message_stats"]
            rates = [stats[f"{name}_details"]["rate"] > 0 for name in ("get", "get_no_ack", "deliver", "deliver_get")]
            return counts(stats).items() >= {"get": 4, "get_no_ack": 8, "deliver_get": 12}.items() and rates == [
                True,
                True,
                False,
                True,
            ]

        def are_shown() -> bool:
            """Get messages, and wait for the rates, which end after five seconds."""
            api("DELETE", "/queues/%2F/got")
            with connection.channel() as channel:
                channel.declare_queue("got")
                for _ in range(12):
                    channel.publish(b"body", routing_key="got")
                for _ in range(8):
                    message = channel.get("got", no_ack=True)
                    assert message is not None
                for _ in range(4):
                    message = channel.get("got")
                    assert message is not None
                    message.ack()
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    if is_shown(api.get("/queues/%2F/got")) and any(map(is_shown, api.get("/channels"))):
                        return True
            return False

        within(are_shown)
        found = api.get(f"/queues/%2F/got?{WINDOWS}")["message_stats"]
        samples = {name: found[f"{name}_details"]["samples"] for name in ("get", "get_no_ack", "deliver_get")}
        assert {name: (values[0]["sample"], values[-1]["sample"]) for name, values in samples.items()} == {
            "get": (4, 0),
            "get_no_ack": (8, 0),
            "deliver_get": (12, 0),
        }


def test_lists_show_what_clients_have_declared_and_deleted_before(api: HttpBroker) -> None:
    def names(path: str, key: str) -> set[str]:
        return {row[key] for row in api.get(path)}

    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        for number in range(8):
            name = f"declared.{number}"
            channel.declare_queue(name)
            assert name in names("/queues", "name") and name in names("/bindings", "destination")
            channel.declare_exchange(name, "topic")
            assert name in names("/exchanges/%2F", "name")
            channel.bind_queue(name, name, "a.#")
            assert [row["routing_key"] for row in api.get(f"/bindings/%2F/e/{name}/q/{name}")] == ["a.#"]
            channel.delete_exchange(name)
            assert name not in names("/exchanges", "name")
            channel.delete_queue(name)
            assert name not in names("/queues/%2F", "name")


def test_objects_say_since_when_they_are_idle(api: HttpBroker) -> None:
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.declare_queue("idle")
        channel.publish(b"body", routing_key="idle")
        began = datetime.now(UTC) - timedelta(seconds=10)

        def idle(path: str, of: Callable[[Any], bool]) -> Any:
            found = [row["idle_since"] for row in api.get(path) if of(row)]
            return found[0] if found else None

        for path, of in (
            ("/queues/%2F", lambda row: row["name"] == "idle"),
            ("/channels", lambda row: row["message_stats"]["publish"] == 1),
        ):
            since = datetime.fromisoformat(within(partial(idle, path, of)))
            assert began < since < datetime.now(UTC)
        channel.publish(b"body", routing_key="idle")
        within(lambda: api.get("/queues/%2F/idle")["idle_since"] is None)
    api("DELETE", "/queues/%2F/idle")
