"""The order of password checks when there are more logins than threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.protocols import login_queue
from leveret.protocols.login_queue import FREE_FAILURES, MAX_BACKOFF, LoginQueue, TooManyLogins, Waiter
from leveret.security.addresses import network_of
from leveret.security.users import User
from tests.protocols.support import Client, Site


class World:
    """A queue, a clock, and threads under test control. `outcomes` maps requests to results."""

    def __init__(self, running: int = 1) -> None:
        self.now = 1000.0
        self.queue = LoginQueue(lambda: self.now, running)
        self.started: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.checked: list[str] = []
        self.outcomes: dict[str, Any] = {}
        self.lost: set[str] = set()

    def submit(
        self, host: str, name: str, password: str, *, right: bool = False, preferred: bool = False, label: str = ""
    ) -> str:
        label = label or f"{host}/{name}/{password}"

        def check() -> bool:
            self.checked.append(label)
            return right

        waiter = Waiter(
            lambda function, done: self.started.append((function, done)),
            lambda result: self.outcomes.update({label: result}),
            lambda: label in self.lost,
        )
        self.queue.submit(host, name, f"{name}/{password}".encode(), check, waiter, preferred=preferred)
        return label

    def finish(self) -> bool:
        """Finish the oldest running check. Return False if there is none."""
        if not self.started:
            return False
        function, done = self.started.pop(0)
        done(function())
        return True

    def finish_all(self) -> None:
        while self.finish():
            pass


@pytest.fixture
def world() -> World:
    return World()


def test_a_flood_delays_neither_other_addresses_nor_other_users(world: World) -> None:
    """Only a few of 1,800 wrong passwords are checked before another user's correct one from any address."""
    for number in range(900):
        world.submit("192.0.2.1", "alice", f"wrong{number}")
    for number in range(900):
        world.submit("192.0.2.1", f"user{number}", "wrong")
    for host, name in (("192.0.2.1", "bob"), ("198.51.100.7", "alice"), ("198.51.100.7", "bob")):
        before = len(world.checked)
        right = world.submit(host, name, "right", right=True)
        while right not in world.outcomes:
            assert world.finish()
        assert world.outcomes[right] is True
        assert len(world.checked) - before <= 3


def test_addresses_take_turns(world: World) -> None:
    world.submit("a", "first", "x")  # runs at once
    for host in ("a", "a", "b", "b", "c"):
        world.submit(host, f"{host}{world.queue.waiting}", "x")
    world.finish_all()
    assert [label[0] for label in world.checked] == ["a", "a", "b", "c", "a", "b"]


def test_equal_logins_share_a_check(world: World) -> None:
    labels = [
        world.submit(f"192.0.2.{number % 200}", "app", "secret", right=True, label=f"client{number}")
        for number in range(500)
    ]
    world.finish_all()
    assert len(world.checked) == 1
    assert [world.outcomes[label] for label in labels] == [True] * 500


def test_previously_correct_logins_go_first(world: World) -> None:
    for number in range(100):
        world.submit("192.0.2.1", "alice", f"wrong{number}")
    world.submit("192.0.2.1", "alice", "right", right=True, preferred=True)
    world.finish()
    world.finish()
    assert world.checked[1:] == ["192.0.2.1/alice/right"]


def test_the_oldest_of_too_many_passwords_of_a_user_is_refused(world: World) -> None:
    for number in range(login_queue.MAX_WAITING_PER_USER + 3):
        world.submit("a", "alice", str(number))
    assert list(world.outcomes) == ["a/alice/1", "a/alice/2"]
    error = world.outcomes["a/alice/1"]
    assert isinstance(error, TooManyLogins) and "this user has 16 pending password checks" in str(error)
    assert world.queue.waiting == login_queue.MAX_WAITING_PER_USER


def test_checks_are_limited_per_address_and_in_total(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_queue, "MAX_WAITING_PER_ADDRESS", 10)
    monkeypatch.setattr(login_queue, "MAX_WAITING", 25)
    world.submit("x", "runs", "x")
    for number in range(12):
        world.submit("a", f"u{number}", "x")
    assert list(world.outcomes) == ["a/u0/x", "a/u1/x"]
    for host in ("b", "c"):
        for number in range(9):
            world.submit(host, f"{host}{number}", "x")
    # of an address with the maximum
    assert list(world.outcomes)[2:] == ["a/u2/x", "a/u3/x", "b/b0/x"]
    assert world.queue.waiting == 25
    world.finish_all()
    assert world.queue.waiting == 0 and len(world.checked) == 1 + 25


def test_a_correct_password_is_checked_at_once_amid_a_trickle_of_wrong_ones(world: World) -> None:
    """Ten wrong passwords per second of the same user and address for a minute: each takes 16 ms to check."""
    for second in range(60):
        for tenth in range(10):
            world.submit("a", "alice", f"wrong {second}.{tenth}")
            if tenth == 5:
                before = len(world.checked)
                right = world.submit("a", "alice", f"right {second}", right=second % 2 == 1)
                while right not in world.outcomes:
                    assert world.finish()
                assert len(world.checked) - before <= 2
                assert world.outcomes[right] is (second % 2 == 1)
            world.finish_all()
            world.now += 0.1
    assert world.queue.waiting == 0 and not any(isinstance(result, TooManyLogins) for result in world.outcomes.values())


def test_replies_to_repeated_wrong_passwords_are_delayed(world: World) -> None:
    backoffs = []
    for number in range(FREE_FAILURES + 8):
        world.submit("a", "alice", str(number))
        world.finish_all()
        backoffs.append(world.queue.backoff("a", "alice"))
    assert backoffs == [0.0] * FREE_FAILURES + [0.1, 0.2, 0.4, 0.8, 1.6, MAX_BACKOFF, MAX_BACKOFF, MAX_BACKOFF]
    assert world.queue.backoff("a", "bob") == world.queue.backoff("b", "alice") == 0.0
    world.submit("a", "alice", "right", right=True)  # resets the count
    world.finish_all()
    assert world.queue.backoff("a", "alice") == 0.0


def test_checks_of_disconnected_clients_are_skipped(world: World) -> None:
    world.submit("a", "x", "runs")
    world.lost.update(world.submit("a", f"u{number}", "x") for number in range(50))
    world.submit("a", "last", "x")
    world.lost.discard("a/last/x")
    world.finish_all()
    assert world.checked == ["a/x/runs", "a/last/x"]
    assert world.queue.waiting == 0


def test_a_failing_check_is_reported_and_the_others_continue(world: World) -> None:
    failed = world.submit("a", "x", "1")
    later = world.submit("a", "y", "1", right=True)
    _, done = world.started.pop()
    done(OSError("no threads"))
    world.finish_all()
    assert isinstance(world.outcomes[failed], OSError)
    assert world.outcomes[later] is True


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
        ("local", "local"),
    ],
)
def test_the_key_of_an_address(host: str, network: str) -> None:
    assert network_of(host) == network


def test_a_login_refused_by_the_queue() -> None:
    """The client is refused as if its password were wrong; only the log contains the reason."""
    site = Site()
    site.users.add(User(name="alice", password_hash="no hash"))
    site.services.logins.submit = _refuse  # type: ignore[method-assign]
    client = Client(site)
    client.run()
    client.engine.send(
        0,
        "connection.start-ok",
        {
            "client_properties": {"capabilities": client.capabilities},
            "mechanism": "PLAIN",
            "response": b"\0alice\0x",
            "locale": "en_US",
        },
    )
    client.run()
    assert client.refusal()[0] == 403


def test_a_client_with_repeated_wrong_passwords_waits_for_the_reply() -> None:
    site = Site()
    answers = []
    for number in range(FREE_FAILURES + 2):
        client = _log_in(site, f"wrong{number}")
        answers.append(client.take("connection.close") is not None)
    assert answers == [True] * FREE_FAILURES + [False, False]
    assert [seconds for seconds, _ in site.later if seconds < 1] == [0.1, 0.2]
    assert _log_in(site, "user").take("connection.tune") is not None
    for seconds, callback in site.later:
        if seconds == 0.2:
            callback()
    client.run()
    assert client.refusal()[0] == 403


def _log_in(site: Site, password: str) -> Client:
    client = Client(site)
    client.run()
    client.engine.send(
        0,
        "connection.start-ok",
        {
            "client_properties": {"capabilities": client.capabilities},
            "mechanism": "PLAIN",
            "response": f"\0user\0{password}".encode(),
            "locale": "en_US",
        },
    )
    client.run()
    return client


def _refuse(host: str, name: str, key: bytes, function: Any, waiter: Waiter, *, preferred: bool = False) -> None:
    waiter.done(TooManyLogins("full"))
