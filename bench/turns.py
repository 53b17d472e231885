"""The longest turn of the event loop by operation, as processor time of its thread, against a broker of its own.

    PYTHONPATH=src:. python -m bench.turns                    every operation, over 100,000 of something
    PYTHONPATH=src:. python -m bench.turns --count 1000000 purge delete
    PYTHONPATH=src:. python -m bench.turns --list

Build the compiled modules first: 20 ms is the bound there. Each operation gets a broker of its own. What prepares it is
measured too, in the column "before".
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from bench.turn_lab import Client, Lab, running

BOUND = 20.0

Operation = Callable[[Lab, int], Callable[[], None]]
OPERATIONS: dict[str, Operation] = {}


def operation(function: Operation) -> Operation:
    OPERATIONS[function.__name__] = function
    return function


def _client(lab: Lab) -> Client:
    client = lab.connect()
    client.open_channel()
    return client


def _deep(lab: Lab, count: int, *, durable: bool = False, arguments: dict[str, object] | None = None,
          **properties: object) -> Client:
    client = _client(lab)
    client.declare("q", durable=durable, arguments=arguments)
    client.fill("q", count, **properties)
    return client


def _unacked(lab: Lab, count: int, arguments: dict[str, object] | None = None) -> Client:
    client = _deep(lab, count, arguments=arguments)
    client.consume("q", tag="c")
    client.wait_delivered(count)
    return client


@operation
def purge(lab: Lab, count: int) -> Callable[[], None]:
    client = _deep(lab, count)
    return lambda: _call(client, "queue.purge", queue="q")


@operation
def purge_durable(lab: Lab, count: int) -> Callable[[], None]:
    client = _deep(lab, count, durable=True, delivery_mode=2)
    return lambda: _call(client, "queue.purge", queue="q")


def _call(client: Client, name: str, **arguments: object) -> None:
    client.call(1, name, f"{name}-ok", **arguments)


@operation
def delete(lab: Lab, count: int) -> Callable[[], None]:
    client = _deep(lab, count)
    return lambda: _call(client, "queue.delete", queue="q")


@operation
def delete_unacked(lab: Lab, count: int) -> Callable[[], None]:
    client = _unacked(lab, count)
    client.declare("other")
    return lambda: _call(client, "queue.delete", queue="q")


@operation
def ack_multiple(lab: Lab, count: int) -> Callable[[], None]:
    client = _unacked(lab, count)

    def act() -> None:
        client.engine.send_ack(1, 0, True)
        client.sync()
    return act


@operation
def nack_requeue(lab: Lab, count: int) -> Callable[[], None]:
    client = _unacked(lab, count)

    def act() -> None:
        client.call(1, "basic.cancel", "basic.cancel-ok", consumer_tag="c")
        client.engine.send_nack(1, 0, True, True)
        client.sync()
    return act


@operation
def reject_dead_letter(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    client.declare("dead")
    client.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.fill("q", count // 4)
    client.consume("q", tag="c")
    client.wait_delivered(count // 4)

    def act() -> None:
        client.engine.send_nack(1, 0, True, False)
        client.sync()
    return act


@operation
def recover(lab: Lab, count: int) -> Callable[[], None]:
    client = _unacked(lab, count)

    def act() -> None:
        client.call(1, "basic.recover", "basic.recover-ok", requeue=True)
    return act


@operation
def close_unacked(lab: Lab, count: int) -> Callable[[], None]:
    client = _unacked(lab, count)
    return client.drop


@operation
def qos_by_size(lab: Lab, count: int) -> Callable[[], None]:
    client = _unacked(lab, count)
    return lambda: _call(client, "basic.qos", prefetch_size=1 << 20, prefetch_count=0, **{"global": True})


@operation
def tx_commit(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    client.declare("q", durable=True)
    client.call(1, "tx.select", "tx.select-ok")
    for _ in range(count):
        client.publish("q", delivery_mode=2)
    client.sync()
    return lambda: _call(client, "tx.commit")


@operation
def tx_rollback_acks(lab: Lab, count: int) -> Callable[[], None]:
    client = _unacked(lab, count)
    client.call(1, "tx.select", "tx.select-ok")
    client.engine.send_ack(1, 0, True)
    client.sync()
    return lambda: _call(client, "tx.rollback")


@operation
def close_channels(lab: Lab, count: int) -> Callable[[], None]:
    client = lab.connect()
    channels = min(count, 65_000)
    for number in range(1, channels + 1):
        client.send(number, "channel.open")
    client.call(channels, "queue.declare", "queue.declare-ok", queue="q")
    return client.drop


@operation
def close_consumers(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    client.declare("q")
    for number in range(min(count, 40_000)):
        client.send(1, "basic.consume", queue="q", consumer_tag=str(number), no_wait=True)
    client.sync()
    return client.drop


@operation
def close_exclusive_queues(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    for number in range(min(count, 50_000)):
        client.send(1, "queue.declare", queue=f"q{number}", exclusive=True, no_wait=True)
    client.sync()
    return client.drop


def _bindings(lab: Lab, count: int, type_name: str) -> Client:
    client = _client(lab)
    client.declare("q", durable=True)
    client.call(1, "exchange.declare", "exchange.declare-ok", exchange="x", type=type_name, durable=True)
    for number in range(count):
        client.send(1, "queue.bind", queue="q", exchange="x", routing_key=f"a.{number}.b", no_wait=True)
    client.sync()
    return client


@operation
def delete_exchange(lab: Lab, count: int) -> Callable[[], None]:
    client = _bindings(lab, min(count, 100_000), "direct")
    return lambda: _call(client, "exchange.delete", exchange="x")


@operation
def delete_bound_queue(lab: Lab, count: int) -> Callable[[], None]:
    client = _bindings(lab, min(count, 100_000), "topic")
    return lambda: _call(client, "queue.delete", queue="q")


@operation
def fanout(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    for number in range(min(count, 50_000)):
        client.send(1, "queue.declare", queue=f"q{number}", no_wait=True)
        client.send(1, "queue.bind", queue=f"q{number}", exchange="amq.fanout", no_wait=True)
    client.sync()

    def act() -> None:
        client.publish("", exchange="amq.fanout")
        client.sync()
    return act


@operation
def many_copies(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    client.declare("q")
    for number in range(min(count, 20_000)):
        client.send(1, "queue.bind", queue="q", exchange="amq.headers", no_wait=True,
                    arguments={"kind": "order", "id": number})
    client.sync()

    def act() -> None:
        client.publish("", exchange="amq.headers", headers={"CC": [str(number) for number in range(900)], "id": 7,
                                                            "kind": "order"})
        client.sync()
    return act


@operation
def expire_all(lab: Lab, count: int) -> Callable[[], None]:
    _deep(lab, count, arguments={"x-message-ttl": 8000 + count // 20})
    return lambda: time.sleep(9 + count / 20_000)


@operation
def expire_to_dead_letters(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    client.declare("dead")
    client.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
                                   "x-message-ttl": 5000})
    client.fill("q", count // 4)
    return lambda: time.sleep(6)


@operation
def consume_expired(lab: Lab, count: int) -> Callable[[], None]:
    client = _deep(lab, count // 2, expiration="3000")
    client.publish("q")

    def act() -> None:
        time.sleep(0.01)
        client.consume("q")
    return act


@operation
def no_local_over_a_deep_queue(lab: Lab, count: int) -> Callable[[], None]:
    client = _deep(lab, count)

    def act() -> None:
        client.call(1, "basic.consume", "basic.consume-ok", queue="q", no_local=True)
        client.sync()
    return act


@operation
def priorities(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    client.declare("q", arguments={"x-max-priority": 255})
    for number in range(count):
        client.publish("q", priority=number % 256)
    client.sync()
    return lambda: _call(client, "queue.purge", queue="q")


@operation
def acks_of_a_shared_window(lab: Lab, count: int) -> Callable[[], None]:
    client = _deep(lab, count)
    client.call(1, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=1000, **{"global": True})
    for number in range(min(count, 20_000)):
        client.send(1, "basic.consume", queue="q", consumer_tag=str(number), no_wait=True)
    client.sync()
    client.wait_delivered(1000)

    def act() -> None:
        for tag in range(1, 1001):
            client.engine.send_ack(1, tag, False)
        client.wait_delivered(2000)
    return act


@operation
def wide_arguments(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    wide = {f"a{number}": number for number in range(9000)}

    def act() -> None:
        for number in range(20):
            client.send(1, "queue.declare", queue=f"w{number}", arguments=wide, no_wait=True)
        client.sync()
    return act


@operation
def many_small_methods(lab: Lab, count: int) -> Callable[[], None]:
    client = _deep(lab, 10)

    def act() -> None:
        for _ in range(min(count, 50_000)):
            client.send(1, "queue.declare", queue="q", passive=True, no_wait=True)
        client.sync()
    return act


@operation
def many_gets(lab: Lab, count: int) -> Callable[[], None]:
    client = _deep(lab, count)

    def act() -> None:
        for _ in range(min(count, 50_000)):
            client.send(1, "basic.get", queue="q", no_ack=True)
        client.sync()
    return act


@operation
def binds(lab: Lab, count: int) -> Callable[[], None]:
    def act() -> None:
        _bindings(lab, min(count, 100_000), "topic")
    return act


@operation
def stream_filters(lab: Lab, count: int) -> Callable[[], None]:
    client = _client(lab)
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.fill("s", count, headers={"x-stream-filter-value": "a"})
    client.call(1, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=100, **{"global": False})

    def act() -> None:
        client.consume("s", arguments={"x-stream-offset": "first", "x-stream-filter": "b"})
        client.publish("s", headers={"x-stream-filter-value": "b"})
        client.wait_delivered(1)
    return act


def measure(name: str, count: int) -> dict[str, object]:
    with running() as lab:
        act = OPERATIONS[name](lab, count)
        lab.settle()
        before = lab.longest()
        lab.reset()
        began = time.monotonic()
        act()
        lab.settle()
        return {"operation": name, "count": count, "before": round(before, 1), "longest": round(lab.longest(), 1),
                "seconds": round(time.monotonic() - began, 2), "build": lab.build}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operations", nargs="*", help="which ones; all by default")
    parser.add_argument("--count", type=int, default=100_000, help="messages, bindings, ... of each")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--list", action="store_true", help="print the names of the operations")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join(OPERATIONS))
        return 0
    worst = 0.0
    print(f"{'operation':<28} {'before':>9} {'longest':>9} ms", flush=True)
    for name in chosen.operations or OPERATIONS:
        try:
            found = measure(name, chosen.count)
        except (OSError, RuntimeError) as error:
            print(f"{name:<28} failed: {error}", flush=True)
            worst = max(worst, BOUND + 1)
            continue
        longest = max(float(str(found["longest"])), float(str(found["before"])))
        worst = max(worst, longest)
        if chosen.json:
            print(json.dumps(found), flush=True)
        else:
            mark = "" if longest <= BOUND else "  above the bound"
            print(f"{name:<28} {found['before']:>9} {found['longest']:>9}{mark}", flush=True)
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
