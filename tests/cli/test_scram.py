"""SCRAM against a broker process, over both protocols, and users from before there was SCRAM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from tests.cli.runner import Commands
from tests.support.broker import Broker, LeveretProcess
from tests.support.scram import log_in_1_0, log_in_amqp091

BOTH = ["SCRAM-SHA-512", "SCRAM-SHA-256"]
# Another user, so that there is no default user.
CONFIG = '[users.other]\npassword = "other"\n'


LOGINS = pytest.mark.parametrize("log_in", [log_in_amqp091, log_in_1_0], ids=["0-9-1", "1.0"])
LogIn = Callable[[Broker, str, str, str], "list[str] | None"]


def permit(commands: Commands, user: str) -> None:
    commands.ok("permissions", "set", user, "--vhost", "/", "--configure", ".*", "--write", ".*", "--read", ".*")


@LOGINS
@pytest.mark.parametrize("mechanism", BOTH)
def test_scram(tmp_path: Path, log_in: LogIn, mechanism: str) -> None:
    """The default user, whose password is known in clear, and one that the command line added."""
    with LeveretProcess(tmp_path / "broker", config="") as broker:
        broker.start()
        offered = log_in(broker, mechanism, "guest", "guest")
        assert offered is not None and offered[:3] == [*BOTH, "PLAIN"]
        assert log_in(broker, mechanism, "guest", "wrong") is None
        assert log_in(broker, mechanism, "unknown", "guest") is None
        commands = Commands(broker.data_dir)
        commands.ok("users", "add", "alice", "--password-file", "-", input="secret")
        permit(commands, "alice")
        assert log_in(broker, mechanism, "alice", "secret") is not None
        commands.ok("users", "change", "alice", "--password-file", "-", input="new")
        assert log_in(broker, mechanism, "alice", "secret") is None
        broker.stop()
        broker.start()
        assert log_in(broker, mechanism, "alice", "new") is not None
        assert log_in(broker, mechanism, "guest", "guest") is None
        broker.check_log()


def test_users_from_before_there_was_scram(tmp_path: Path) -> None:
    broker = LeveretProcess(tmp_path / "broker", config=CONFIG + '[auth]\nmechanisms = ["PLAIN"]\n')
    with broker:
        broker.start()
        commands = Commands(broker.data_dir)
        commands.ok("users", "add", "alice", "--password-file", "-", input="secret")
        permit(commands, "alice")
        broker.stop()
        broker.config = CONFIG
        broker.start()
        assert [user["scram"] for user in commands.json("users")] == [False, True]
        # A mechanism that would lock alice out is not offered.
        parameters = pika.ConnectionParameters(
            "127.0.0.1", broker.port, credentials=pika.PlainCredentials("alice", "secret")
        )
        connection = pika.BlockingConnection(parameters)
        connection.close()
        assert [user["scram"] for user in commands.json("users")] == [True, True]
        for _ in range(2):
            assert log_in_amqp091(broker, BOTH[0], "alice", "secret") is not None
            assert log_in_1_0(broker, BOTH[1], "alice", "secret") is not None
            broker.stop()
            broker.start()
        broker.check_log()
