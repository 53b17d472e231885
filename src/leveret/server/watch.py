"""The watch over memory and disk: alarms that hold publishers back, and the share of memory a queue may use."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from leveret.broker.broker import DEFAULT_PAGE_ABOVE
from leveret.broker.failures import Failures
from leveret.broker.log import FULL
from leveret.protocols.services import Services

log = logging.getLogger("leveret.server")

INTERVAL = 0.25
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
# Between the alarm and its end lies this much, so that it does not flap.
RELEASE = 0.95
NO_LIMIT = 1 << 62
# All queues together keep a quarter of the limit in memory, and no more than this. Beyond that the disk's cache serves.
MOST_IN_QUEUES = 512 << 20
# So many queues are added up in about a millisecond, which is what one look may cost.
QUEUES_A_LOOK = 10_000
# Seconds between two requests to the allocator to give memory back.
TRIM_INTERVAL = 1.0


def resident_bytes() -> int:
    """Memory of this process that is resident."""
    with ResidentMemory() as memory:
        return memory.read()


class ResidentMemory:
    """Measures the resident memory of this process through a file that stays open: a process that has run out of file
    descriptors must still notice when it runs out of memory."""

    def __init__(self) -> None:
        self._file = open("/proc/self/statm", "rb", buffering=0)  # noqa: SIM115

    def __enter__(self) -> ResidentMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> int:
        """Bytes."""
        return int(os.pread(self._file.fileno(), 256, 0).split()[1]) * _PAGE_SIZE

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def give_back() -> None:
    """Have the C library return freed memory to the system, where it can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Watch:
    """Called every INTERVAL seconds. `memory_limit` and `disk_free` in octets, 0 for no limit."""

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
        self.looks = 0
        self.trim_due = 0.0
        self._memory = ResidentMemory()
        self._steps: list[tuple[Callable[[], None], Failures]] = [
            (step, Failures(log, f"the watch ({what})")) for what, step in (
                ("memory", self._look_at_memory), ("paging out", self.broker.page_down), ("disk", self._look_at_disk),
                ("sockets that are not read", self._look_at_peers), ("alarms", self._set_alarm))]

    def close(self) -> None:
        """The end of the watch."""
        self._memory.close()

    def look(self) -> None:
        """Measure, page out, raise or end alarms. A step that fails leaves the others, and its own last result, alone."""
        for step, failures in self._steps:
            try:
                step()
            except Exception as error:
                failures.report(error)

    def _look_at_peers(self) -> None:
        for session in list(self.services.sessions):
            session.check_peer()

    def _set_alarm(self) -> None:
        reasons = []
        if self.memory_alarm:
            reasons.append("memory")
        if self.disk_alarm:
            reasons.append("disk")
        if self.broker.log.state == FULL:
            reasons.append("store full")
        self.services.set_alarm(" and ".join(reasons))

    def _look_at_memory(self) -> None:
        # Without a limit as with one that nothing reaches: what an earlier one has raised must end.
        limit = self.memory_limit or NO_LIMIT
        resident = self._memory.read()
        if resident > limit * 0.5 and time.monotonic() >= self.trim_due:
            # What was freed may still stand in the allocator's arenas, and would keep the alarm on for ever.
            self.trim_due = time.monotonic() + TRIM_INTERVAL
            give_back()
            resident = self._memory.read()
        self.resident = resident
        broker = self.broker
        most = DEFAULT_PAGE_ABOVE
        if resident > limit * 0.8:
            most //= 256
        elif resident > limit * 0.5:
            most //= 16
        self._share(min(limit // 4, MOST_IN_QUEUES), most)
        tight = resident > limit * 0.8
        if broker.tight and not tight:
            broker.tight = False
            for session in list(self.services.sessions):
                session.wake()
        broker.tight = tight
        if resident > limit:
            self.memory_alarm = True
        elif resident < limit * RELEASE:
            self.memory_alarm = False

    def _share(self, budget: int, most: int) -> None:
        """Set the share of the queues: at once where it must shrink, and otherwise not more often than pays."""
        self.looks += 1
        broker = self.broker
        queues = sum(len(vhost.queues) for vhost in broker.vhosts.values())
        if most < self.most or self.looks > queues // QUEUES_A_LOOK:
            self.looks = 0
            self.most = most
            broker.share_memory(budget, most)

    def _look_at_disk(self) -> None:
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
