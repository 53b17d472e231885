"""Vhosts in several processes: placement, restarts of shards and of the front, and the number of shards."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.cluster.sharded import KEPT, Sharded, running
from tests.support.polling import wait_until


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_the_vhosts_of_the_configuration_are_spread_over_the_shards(tmp_path: Path) -> None:
    with running(Sharded(tmp_path, 2, "a", "b", "c")) as broker:
        assert [sorted(broker.vhosts(shard)) for shard in (0, 1)] == [["/", "b"], ["a", "c"]]
        for vhost in ("/", "a", "b", "c"):
            broker.publish(vhost, f"for {vhost}".encode())
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.* vhost d not found"):
            broker.open("d")
        # They stay there, even if the configuration would now be spread differently.
        broker.stop()
        broker.start()
        assert [sorted(broker.vhosts(shard)) for shard in (0, 1)] == [["/", "b"], ["a", "c"]]
        for vhost in ("/", "a", "b", "c"):
            assert broker.bodies(vhost) == [f"for {vhost}".encode()]


def test_a_killed_shard_restarts_and_clients_of_other_shards_do_not_notice(tmp_path: Path) -> None:
    with running(Sharded(tmp_path, 2, "a")) as broker:
        broker.publish("a", b"kept")
        ours, theirs = broker.open("/"), broker.open("a")
        channel = ours.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        killed = broker.kill_shard(1)
        refusals = set()
        for number in range(10_000):
            channel.basic_publish("", "q", b"%d" % number, KEPT)
            try:
                broker.open("a").close()
            except pika.exceptions.AMQPConnectionError as refused:
                refusals.add(str(refused))
            else:
                break
        assert "ConnectionClosedByBroker: (320) 'CONNECTION_FORCED - shard 1 is restarting'" in refusals
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            theirs.process_data_events(time_limit=30)
        assert broker.bodies("a") == [b"kept"]
        assert broker.shard_pid(1) != killed
        ours.close()
        assert len(broker.bodies("/")) == number + 1


def test_a_new_broker_starts_at_once_after_the_front_was_killed(tmp_path: Path) -> None:
    broker = Sharded(tmp_path, 2, "a")
    with broker.start():
        broker.publish("a", b"in a")
        broker.publish("/", b"in /")
        client = broker.open("a")
        old = list(broker.shards)
        broker.kill()
        broker.start()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            client.process_data_events(time_limit=30)
        assert closed.value.reply_code == 320
        assert (broker.bodies("a"), broker.bodies("/")) == ([b"in a"], [b"in /"])
        for pid in old:
            wait_until(partial(has_ended, pid), "a shard of the killed front to end")


def test_the_number_of_shards_changes(tmp_path: Path) -> None:
    broker = Sharded(tmp_path, 1, "a")
    with broker.start():
        broker.publish("/", b"one")
        broker.publish("a", b"two")
    for count in (3, 2, 1, 3):
        broker.count = count
        with broker.start():
            assert broker.bodies("/") == [b"one"], count
            assert broker.bodies("a") == [b"two"], count
            broker.publish("/", b"one")
            broker.publish("a", b"two")
    broker.check_log()
