"""Vhosts in several processes: placement, restarts of shards and of the front, and the number of shards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pika
import pika.exceptions
import pytest
from click.testing import CliRunner

from leveret.cli.app import leveret
from tests.cli.runner import Commands
from tests.cluster.sharded import KEPT, Sharded, config, running
from tests.support.broker import ROOT
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
        (broker.directory / "leveret.toml").write_text(config("a", "b", "c", "d"))
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: "d" in broker.vhosts(0), broker.log)
        broker.publish("d", b"for d")


def test_a_killed_shard_restarts_and_clients_of_other_shards_do_not_notice(tmp_path: Path) -> None:
    with running(Sharded(tmp_path, 2, "a")) as broker:
        broker.publish("a", b"kept")
        ours, theirs = broker.open("/"), broker.open("a")
        channel = ours.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        published: list[bytes] = []
        refusals: set[str] = set()

        def opens() -> bool:
            published.append(b"%d" % len(published))
            channel.basic_publish("", "q", published[-1], KEPT)
            try:
                broker.open("a").close()
            except pika.exceptions.AMQPConnectionError as refused:
                refusals.add(str(refused))
                return False
            return True

        def is_restarting() -> bool:
            return not opens() and "ConnectionClosedByBroker: (320) 'CONNECTION_FORCED - shard 1 is restarting'" in refusals

        # Without its directory, the shard does not start again.
        killed = broker.shard_pid(1)
        directory = broker.data_dir / "shards" / "1"
        hidden = directory.with_name("hidden")
        directory.rename(hidden)
        directory.touch()
        os.kill(killed, signal.SIGKILL)
        wait_until(is_restarting, lambda: str(refusals))
        directory.unlink()
        hidden.rename(directory)
        wait_until(opens, lambda: str(refusals))
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            theirs.process_data_events(time_limit=30)
        assert broker.bodies("a") == [b"kept"]
        assert broker.shard_pid(1) != killed
        ours.close()
        assert broker.bodies("/") == published


def test_a_hung_shard_is_killed_and_restarts(tmp_path: Path) -> None:
    with running(Sharded(tmp_path, 2, "a", LEVERET_CLUSTER__SHARD_TIMEOUT="3")) as broker:
        broker.publish("a", b"kept")
        client = broker.open("a")
        pid = broker.shard_pid(1)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            client.process_data_events(time_limit=30)
        wait_until(lambda: has_ended(pid))
        broker.shard_pid(1, other_than=pid)
        assert broker.bodies("a") == [b"kept"]
        reason = "the process of shard 1 has not answered for 3 seconds ('cluster.shard_timeout'): killing it"
        assert reason in broker.log()
        # A broker that was frozen as a whole resumes.
        pids = [broker.pid, broker.shard_pid(0), broker.shard_pid(1)]
        for number in pids:
            os.kill(number, signal.SIGSTOP)
        stopped = Path(f"/proc/{broker.pid}/stat")
        wait_until(lambda: stopped.read_text().split()[2] == "T")
        time.sleep(4)  # longer than the timeout of shards
        for number in pids:
            os.kill(number, signal.SIGCONT)
        broker.publish("a", b"after")
        assert [broker.shard_pid(0), broker.shard_pid(1)] == pids[1:]


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


# Fails the commits of a store while a file named `fail` is in its directory, as an I/O error of the disk would.
BREAK = """
import os
from leveret.storage import sqlite_store

commit = sqlite_store.SqliteStore.commit

def breaking(self, batch):
    if os.path.exists(self.path.parent / "fail"):
        raise sqlite_store.StoreBroken("disk I/O error")
    return commit(self, batch)

sqlite_store.SqliteStore.commit = breaking
"""


def test_only_the_shard_whose_store_fails_opens_it_again(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BREAK)
    broker = Sharded(tmp_path / "broker", 2, "a", PYTHONPATH=f"{ROOT / 'src'}:{tmp_path}")
    with running(broker):
        broker.publish("a", b"kept")
        ours, theirs = broker.open("/"), broker.open("a")
        channel = ours.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        failing = broker.data_dir / "shards" / "1" / "fail"
        failing.touch()
        with pytest.raises(pika.exceptions.AMQPError):
            broker.publish("a", b"not confirmed")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            theirs.process_data_events(time_limit=30)
        broker.wait_for_log("shard 1: the store has failed: disk I/O error")
        channel.basic_publish("", "q", b"confirmed", KEPT)
        failing.unlink()
        assert wait_until(partial(taken, broker, "a"), broker.log) == [b"kept"]
        channel.basic_publish("", "q", b"confirmed", KEPT)
        ours.close()


def taken(broker: Sharded, vhost: str) -> list[bytes]:
    """Return the messages in a vhost, none while its shard refuses connections."""
    try:
        return broker.bodies(vhost)
    except pika.exceptions.AMQPConnectionError:
        return []


def test_users_and_parameters_are_kept_when_the_number_of_shards_changes(tmp_path: Path) -> None:
    broker = Sharded(tmp_path, 1, "a")
    broker.config = ""
    commands = Commands(broker.data_dir)
    with broker.start():
        commands.ok("users", "add", "ann", "--password-file", "-", input="a1")
        commands.ok("global-parameters", "set", "cluster_name", '"one"')
    broker.count = 2
    with broker.start():
        commands.ok("users", "add", "bob", "--password-file", "-", input="b2")
        commands.ok("global-parameters", "set", "cluster_name", '"two"')
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="530"):
            broker.open("/", "ann", "a1")
    broker.count = 1
    with broker.start():
        assert [user["name"] for user in commands.json("users", "list")] == ["ann", "bob"]
        assert commands.json("global-parameters", "list")[0]["value"] == "two"
        assert not (broker.data_dir / "shared").exists()
        assert not (broker.data_dir / "shards").exists()


def test_a_number_of_shards_that_leaves_out_vhosts_is_refused(tmp_path: Path) -> None:
    broker = Sharded(tmp_path, 2, "a")
    with broker.start():
        pass
    broker.count = 1
    with pytest.raises(
        RuntimeError, match=r"'cluster.shards' is 1, but more shards in .*/shards have vhosts: shard 1 has 'a'; exp"
    ):
        broker.start()
    broker.count = 2
    with broker.start():
        assert broker.vhosts(1) == ["a"]
    assert sorted(check(broker)["damaged"]) == []
    marked = broker.data_dir / "shards" / "1" / "log-0.sqlite"
    marked.unlink()
    assert [text.startswith(f"the database {marked} is missing") for text in check(broker)["damaged"]] == [True]


def check(broker: Sharded) -> dict[str, list[str]]:
    """Check the data directory of a stopped broker."""
    found: dict[str, list[str]] = json.loads(CliRunner().invoke(leveret, ["check", str(broker.data_dir), "--json"]).output)
    return found


def test_a_second_broker_on_the_data_directory_is_refused(tmp_path: Path) -> None:
    with running(Sharded(tmp_path / "one", 2)) as broker:
        second = Sharded(tmp_path / "two", 2, LEVERET_SERVER__SHUTDOWN_TIMEOUT="1")
        second.data_dir = broker.data_dir
        with pytest.raises(RuntimeError, match=rf"data directory \S* is in use by process {broker.pid}"):
            second.start()
        assert broker.vhosts(0) == ["/"]


@pytest.mark.parametrize("count", [1, 2])
def test_missing_users_are_refused(tmp_path: Path, count: int) -> None:
    broker = Sharded(tmp_path, 2)
    with broker.start():
        pass
    shutil.rmtree(broker.data_dir / "shared")
    broker.count = count
    with pytest.raises(RuntimeError, match="parameters are not in this log, but in the directory 'shared'"):
        broker.start()
    broker.extra = ["--accept-missing"]
    with broker.start():
        broker.publish("/", b"one")
    broker.extra = []
    with broker.start():
        assert broker.bodies("/") == [b"one"]
