"""Monitoring of memory and disk: alarms that block publishers, and the memory budget of queues."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from leveret.broker.broker import DEFAULT_PAGE_ABOVE
from leveret.broker.failures import Failures
from leveret.broker.log import AWAY, FULL
from leveret.protocols.services import Services

logger = logging.getLogger("leveret.server")

INTERVAL = 0.25
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
# Fraction of the limit below which the alarm is cleared, so that it does not flap.
CLEAR_RATIO = 0.95
NO_LIMIT = 1 << 62
# Upper bound in bytes of the memory budget of all queues, which is a quarter of the limit. Beyond that, the disk cache
# suffices.
MAX_QUEUE_MEMORY = 512 << 20
# Number of queues that take about 1 ms to sum up, the average cost of a check.
QUEUES_PER_CHECK = 10_000
# Checks between two looks at the sockets of all sessions.
CHECKS_PER_LOOK = 4
# Units of work to check whether a socket has closed, and to wake a session, plus one per channel.
PEER_WORK = 3
WAKE_WORK = 5
# Seconds between requests to the allocator to return memory to the system.
TRIM_INTERVAL = 1.0


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    with ResidentMemory() as memory:
        return memory.read()


class ResidentMemory:
    """Meter of the resident memory of this process.

    The file stays open, so that the alarm works in a process without free file descriptors.
    """

    def __init__(self) -> None:
        self._file = open("/proc/self/statm", "rb", buffering=0)  # noqa: SIM115

    def __enter__(self) -> ResidentMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> int:
        """Return the resident memory in bytes."""
        return int(os.pread(self._file.fileno(), 256, 0).split()[1]) * _PAGE_SIZE

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def trim_heap() -> None:
    """Return freed memory to the system, if the C library supports it (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Watch:
    """Monitor of memory and disk, every INTERVAL seconds. `memory_limit` and `disk_free` are bytes; 0 is unlimited."""

    def __init__(self, services: Services, memory_limit: int, disk_free: int, data_path: Path | None) -> None:
        self.services = services
        self.broker = services.broker
        self.memory_limit = memory_limit
        self.disk_free = disk_free
        self.data_path = data_path
        self.memory_alarm = False
        self.disk_alarm = False
        self.resident = 0
        self.most = DEFAULT_PAGE_ABOVE
        self.checks = 0
        self.trim_due = 0.0
        self._memory = ResidentMemory()
        self._looking_at_peers = False
        self._checks_to_look = 1
        self._steps: list[tuple[Callable[[], None], Failures]] = [
            (step, Failures(logger, f"the watch ({what})"))
            for what, step in (
                ("memory", self._check_memory),
                ("paging out", self.broker.page_down),
                ("disk", self._check_disk),
                ("sockets that are not read", self._check_peers),
                ("alarms", self._set_alarm),
            )
        ]

    def close(self) -> None:
        """Stop the watch."""
        self._memory.close()

    def check(self) -> None:
        """Measure, page out, and raise or clear alarms. A failing step affects neither the others nor its last result."""
        for step, failures in self._steps:
            try:
                step()
            except Exception as error:
                failures.report(error)

    def _check_peers(self) -> None:
        self._checks_to_look -= 1
        if self._checks_to_look <= 0 and not self._looking_at_peers:
            self._checks_to_look = CHECKS_PER_LOOK
            self._looking_at_peers = True
            self.broker.jobs.run_steps(self._each_peer())

    def _each_peer(self) -> Iterator[int]:
        try:
            for session in list(self.services.sessions):
                session.check_peer()
                yield PEER_WORK
        finally:
            self._looking_at_peers = False

    def _set_alarm(self) -> None:
        reasons = []
        if self.memory_alarm:
            reasons.append("memory")
        if self.disk_alarm:
            reasons.append("disk")
        if self.broker.log.state == FULL:
            reasons.append("store full")
        elif self.broker.log.state == AWAY:
            reasons.append("store away")
        self.services.set_alarm(" and ".join(reasons))

    def _check_memory(self) -> None:
        # Without a limit, use an unreachable one, so that the alarm of an earlier limit is cleared.
        limit = self.memory_limit or NO_LIMIT
        resident = self._memory.read()
        if resident > limit * 0.5 and time.monotonic() >= self.trim_due:
            # Freed memory in the allocator's arenas would keep the alarm raised forever.
            self.trim_due = time.monotonic() + TRIM_INTERVAL
            trim_heap()
            resident = self._memory.read()
        self.resident = resident
        broker = self.broker
        most = DEFAULT_PAGE_ABOVE
        if resident > limit * 0.8:
            most //= 256
        elif resident > limit * 0.5:
            most //= 16
        self._share(min(limit // 4, MAX_QUEUE_MEMORY), most)
        tight = resident > limit * 0.8
        relieved = broker.tight and not tight
        broker.tight = tight
        if relieved:
            broker.jobs.run_steps(self._wake_sessions())
        if resident > limit:
            self.memory_alarm = True
        elif resident < limit * CLEAR_RATIO:
            self.memory_alarm = False

    def _wake_sessions(self) -> Iterator[int]:
        """Wake sessions, which may have more unacked deliveries again."""
        for session in list(self.services.sessions):
            session.wake()
            yield WAKE_WORK + session.channel_count()

    def _share(self, budget: int, most: int) -> None:
        """Set the memory budget of queues: at once if it shrinks, otherwise at a rate that limits the cost."""
        self.checks += 1
        broker = self.broker
        queues = sum(len(vhost.queues) for vhost in broker.vhosts.values())
        if most < self.most or self.checks > queues // QUEUES_PER_CHECK:
            self.checks = 0
            self.most = most
            broker.share_memory(budget, most)

    def _check_disk(self) -> None:
        if self.data_path is None or not self.disk_free:
            self.disk_alarm = False
            return
        try:
            free = shutil.disk_usage(self.data_path).free
        except OSError:
            return
        if free < self.disk_free:
            self.disk_alarm = True
        elif free > self.disk_free * 1.05:
            self.disk_alarm = False
