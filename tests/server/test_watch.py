"""The watch over memory and disk."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.broker.broker import DEFAULT_PAGE_ABOVE
from leveret.broker.jobs import STEP_WORK
from leveret.broker.log import FULL, OK
from leveret.server import watch as module
from leveret.server.watch import CHECKS_PER_LOOK, PEER_WORK, WAKE_WORK, Watch
from tests.protocols.support import Site
from tests.support.queues import classic

MEGABYTE = 1 << 20


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The memory that the process reports: `octets`."""
    state = SimpleNamespace(octets=0)
    monkeypatch.setattr(module.ResidentMemory, "read", lambda self: state.octets)
    monkeypatch.setattr(module, "trim_heap", lambda: None)
    return state


def test_the_alarm_starts_at_the_limit_and_ends_below_it(site: Site, memory: SimpleNamespace) -> None:
    watch = Watch(site.services, 100 * MEGABYTE, 0, None)
    alarms = []
    for megabytes in (50, 99, 101, 99, 96, 94, 101):
        memory.octets = megabytes * MEGABYTE
        watch.check()
        alarms.append(site.services.alarm)
    assert alarms == ["", "", "memory", "memory", "memory", "", "memory"]


def test_queues_share_less_as_memory_runs_short(site: Site, memory: SimpleNamespace) -> None:
    watch = Watch(site.services, 100 * MEGABYTE, 0, None)
    shares = []
    for megabytes in (10, 60, 85, 10):
        memory.octets = megabytes * MEGABYTE
        watch.check()
        shares.append(site.broker.page_above)
    assert shares[0] == shares[3] == DEFAULT_PAGE_ABOVE
    assert shares[0] > shares[1] > shares[2] > 0


def test_removed_limits_end_their_alarms(site: Site, memory: SimpleNamespace, tmp_path: Path) -> None:
    watch = Watch(site.services, 100 * MEGABYTE, 1 << 62, tmp_path)
    memory.octets = 101 * MEGABYTE
    watch.check()
    assert site.services.alarm == "memory and disk" and site.broker.tight
    watch.memory_limit = watch.disk_free = 0
    watch.check()
    assert site.services.alarm == "" and not site.broker.tight and site.broker.page_above == DEFAULT_PAGE_ABOVE


def test_consumers_blocked_by_low_memory_are_woken(site: Site, memory: SimpleNamespace) -> None:
    watch = Watch(site.services, 100 * MEGABYTE, 0, None)
    memory.octets = 90 * MEGABYTE
    watch.check()
    assert site.broker.tight
    channel = site.channel()
    channel.declare()
    for _ in range(1100):
        channel.publish()
    channel.consume()
    assert len(channel.deliveries()) == 1000
    memory.octets = 10 * MEGABYTE
    watch.check()
    assert len(channel.deliveries()) == 100


class CountedSession:
    """Stands for one of many sessions."""

    def __init__(self) -> None:
        self.checks = 0
        self.wakes = 0

    def check_peer(self) -> None:
        self.checks += 1

    def wake(self) -> None:
        self.wakes += 1

    def channel_count(self) -> int:
        return 1


def test_many_sockets_are_checked_in_steps(site: Site) -> None:
    watch = Watch(site.services, 0, 0, None)
    sessions: list[Any] = [CountedSession() for _ in range(STEP_WORK)]
    site.services.sessions.update(dict.fromkeys(sessions))
    watch.check()
    first = sum(session.checks for session in sessions)
    assert 0 < first <= STEP_WORK / PEER_WORK + 1
    for _ in range(2 * CHECKS_PER_LOOK):
        watch.check()  # while the round is not over
    site.run()
    assert {session.checks for session in sessions} == {1}
    watch.check()
    site.run()
    assert {session.checks for session in sessions} == {2}


def test_sockets_are_looked_at_once_in_several_checks(site: Site) -> None:
    watch = Watch(site.services, 0, 0, None)
    session: Any = CountedSession()
    site.services.sessions[session] = None
    looks = []
    for _ in range(2 * CHECKS_PER_LOOK + 1):
        watch.check()
        site.run()
        looks.append(session.checks)
    assert looks == [1] * CHECKS_PER_LOOK + [2] * CHECKS_PER_LOOK + [3]


def test_many_sessions_are_woken_in_steps(site: Site, memory: SimpleNamespace) -> None:
    watch = Watch(site.services, 100 * MEGABYTE, 0, None)
    sessions: list[Any] = [CountedSession() for _ in range(STEP_WORK)]
    site.services.sessions.update(dict.fromkeys(sessions))
    site.broker.tight = True
    memory.octets = 10 * MEGABYTE
    watch.check()
    assert 0 < sum(session.wakes for session in sessions) <= STEP_WORK / WAKE_WORK + 1
    site.run()
    assert {session.wakes for session in sessions} == {1} and not site.broker.tight


def test_deep_queues_are_paged_without_a_limit_too(site: Site) -> None:
    watch = Watch(site.services, 0, 0, None)
    site.broker.page_above = 100_000
    channel = site.channel()
    channel.declare(durable=True)
    for _ in range(20):
        channel.publish(body=bytes(20_000), delivery_mode=2)
        channel.run()
    queue = site.vhost.queues["q"]
    assert classic(queue).ready.backlog.paged == 0
    watch.check()
    assert classic(queue).ready.backlog.paged > 10
    assert len(channel.bodies()) == 20


def test_a_full_store_is_an_alarm(site: Site) -> None:
    watch = Watch(site.services, 0, 0, None)
    site.log.state = FULL
    watch.check()
    assert site.services.alarm == "store full"
    site.log.state = OK
    watch.check()
    assert site.services.alarm == ""


def test_a_full_disk_is_an_alarm(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watch = Watch(site.services, 0, 100 * MEGABYTE, tmp_path)
    alarms = []
    for free in (200, 99, 101, 106):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free * MEGABYTE))
        watch.check()
        alarms.append(site.services.alarm)
    assert alarms == ["", "disk", "disk", ""]


def test_two_reasons_at_once(site: Site, memory: SimpleNamespace) -> None:
    watch = Watch(site.services, 100 * MEGABYTE, 0, None)
    memory.octets = 200 * MEGABYTE
    site.log.state = FULL
    watch.check()
    assert site.services.alarm == "memory and store full"


def test_the_process_uses_some_memory() -> None:
    assert module.resident_bytes() > 5 * MEGABYTE


def test_a_failing_step_does_not_affect_the_others(
    site: Site, memory: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(site.services, 100 * MEGABYTE, 100 * MEGABYTE, tmp_path)
    memory.octets = 101 * MEGABYTE
    watch.check()
    assert site.services.alarm == "memory"

    def fail(self: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module.ResidentMemory, "read", fail)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    for _ in range(3):
        watch.check()
    assert site.services.alarm == "memory and disk"
    failures = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert failures == ["the watch (memory) failed and will be retried: OSError: [Errno 24] Too many open files"]


def test_memory_is_measured_without_opening_a_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(site.services, 100 * MEGABYTE, 0, None)
    monkeypatch.setattr("builtins.open", None)
    monkeypatch.setattr(os, "open", None)
    watch.check()
    assert watch.resident > 5 * MEGABYTE
    watch.close()
