"""The broker's side of the sealer process: starts it on demand, stops it when idle, restarts it after a crash.

Two threads do the blocking pipe I/O: one starts the process and writes requests, one reads replies. Everything else runs
on the event loop. Requests that are pending when the process dies are sent again, except those of a segment that is being
written: its task fails, and the owner starts it again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Final

import msgspec

from leveret._isolation import python_command
from leveret.broker.bodies import Spool
from leveret.broker.log import Loaded, Located, RowsAddress
from leveret.broker.segments import FAILED, SealTask, Segment, SegmentStore, Written
from leveret.segments import process_frames
from leveret.segments.process_frames import Reply, Request, Setup
from leveret.storage import disk
from leveret.storage.located import rebuild

logger = logging.getLogger("leveret.segments")

# Parts of a segment that are sent ahead of their replies.
_WINDOW: Final = 2
# Delay before a process that lived for less than _MIN_UPTIME seconds is restarted; doubled each time.
_MIN_RESTART_DELAY: Final = 0.1
_MAX_RESTART_DELAY: Final = 30.0
_MIN_UPTIME: Final = 10.0
# Seconds after which an idle process is stopped.
IDLE_TIMEOUT = 900.0
# Seconds to wait for the process to exit.
_STOP_TIMEOUT: Final = 2.0
_DIED: Final = "the sealer process has died"


class _Request:
    """A request to the process. `generation` is that of the process it was sent to, 0 before."""

    __slots__ = ("done", "fields", "generation", "tries")

    def __init__(self, fields: Request, done: Callable[[Reply, list[Loaded]], None], tries: int) -> None:
        self.fields = fields
        self.done = done
        self.tries = tries
        self.generation = 0


class _Job:
    """A segment that is being written. `first` is the first request for it, None before."""

    __slots__ = ("finishing", "first", "located", "number", "task")

    def __init__(self, task: SealTask) -> None:
        self.task = task
        self.number = 0
        self.first: _Request | None = None
        self.located: deque[Located] = deque()
        self.finishing = False

    def is_lost_with(self, generation: int) -> bool:
        """Return whether a process of a generation, which has died, had the beginning of the segment."""
        return self.first is not None and 0 < self.first.generation <= generation

    def release(self) -> None:
        while self.located:
            self.located.popleft().release()


class SealerProcess(SegmentStore):
    """Stores segments in a local directory, or at any URL that fsspec supports, using a separate process.

    Args:
        directory: Absolute path or URL.
        rows: The address of the log's rows.
        spool: The broker's spool of large bodies, None to keep them in memory.
        unfinished: Local directory for files that are uploaded when they are complete.
        options_file: TOML or JSON file with options for fsspec.
        catalog: Properties of the Iceberg catalog, None if streams have no tables.
        mode: Mode of local segment files.
    """

    def __init__(
        self,
        directory: str,
        rows: RowsAddress,
        spool: Spool | None,
        unfinished: Path,
        options_file: str | None = None,
        catalog: dict[str, str] | None = None,
        mode: int = disk.PRIVATE_FILE,
    ) -> None:
        self.directory = directory
        self.spool = spool
        self._setup = Setup(
            directory=directory,
            engine=rows.engine,
            rows=rows.fields,
            spool=str(unfinished),
            options_file=options_file,
            catalog=catalog,
            mode=mode,
        )
        self._post: Callable[[Callable[[], None]], None] = _drop_callback
        self._outbox: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._pending: dict[int, _Request] = {}
        self._number = 0
        self._jobs: deque[_Job] = deque()
        self._stopping = threading.Event()
        self._writer: threading.Thread | None = None
        self._generation = 0
        self._retired_generation = 0
        self._restart_delay = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    # Life cycle of the process

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post

    def stop(self) -> None:
        self._stopping.set()
        self._post = _drop_callback
        if self._writer is not None:
            self._outbox.put(None)
            self._writer.join(2 * _STOP_TIMEOUT)
            if self._writer.is_alive() and self.process is not None:
                self.process.kill()  # it does not read its pipe
                self._writer.join()
        self._pending.clear()
        while self._jobs:
            self._jobs.popleft().release()

    def _request(self, fields: Request, done: Callable[[Reply, list[Loaded]], None], tries: int = 2) -> int:
        self._number += 1
        fields["n"] = self._number
        request = _Request(fields, done, tries)
        self._pending[self._number] = request
        self._send(request)
        return self._number

    def _send(self, request: _Request) -> None:
        if self._writer is None and not self._stopping.is_set():
            self._writer = threading.Thread(target=self._write, name="leveret-segments", daemon=True)
            self._writer.start()
        self._outbox.put(request)

    def _write(self) -> None:
        """Run the thread that starts the process and writes to it."""
        process: subprocess.Popen[bytes] | None = None
        began = 0.0
        while True:
            try:
                request = self._outbox.get(timeout=IDLE_TIMEOUT if process is not None else None)
            except queue.Empty:
                if process is not None and not self._pending and not self._jobs:
                    self._retired_generation = self._generation
                    _end(process)
                    process = None
                continue
            if request is None:
                break
            if process is None or process.poll() is not None:
                if request.fields["op"] == process_frames.ABANDON:
                    continue
                self._restart_delay = (
                    0.0
                    if time.monotonic() - began > _MIN_UPTIME
                    else min(max(2 * self._restart_delay, _MIN_RESTART_DELAY), _MAX_RESTART_DELAY)
                )
                if self._stopping.wait(self._restart_delay):
                    break
                began = time.monotonic()
                process = self._start_process()
                if process is None:
                    self._post(partial(self._fail, request, "the sealer process cannot be started"))
                    continue
            request.generation = self._generation
            assert process.stdin is not None
            try:
                data = process_frames.encode(request.fields)
            except Exception as error:
                logger.exception("a request to the sealer process cannot be encoded")
                self._post(partial(self._fail, request, f"{type(error).__name__}: {error}"))
                continue
            with contextlib.suppress(OSError):  # the reading thread notices that the process died
                process.stdin.write(data)
                if self._outbox.empty():
                    process.stdin.flush()
        if process is not None:
            _end(process)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            python_command("leveret.segments.process_main"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0 if os.name == "posix" else None,
        )

    def _start_process(self) -> subprocess.Popen[bytes] | None:
        try:
            process = self._spawn()
        except (OSError, subprocess.SubprocessError) as error:
            logger.error("the sealer process cannot be started: %s", error)
            return None
        self._generation += 1
        self.process = process
        self.starts += 1
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write(process_frames.encode(self._setup))
        try:
            threading.Thread(
                target=self._read,
                args=(process, process.stdout, self._generation),
                name="leveret-segments-replies",
                daemon=True,
            ).start()
        except RuntimeError as error:
            logger.error("the thread that reads the sealer process's replies cannot be started: %s", error)
            process.kill()
            _end(process)
            return None
        logger.info("sealer process %d stores segments in %s", process.pid, self.directory)
        return process

    def _read(self, process: subprocess.Popen[bytes], replies: IO[bytes], generation: int) -> None:
        """Run the thread that reads the replies of one process."""
        decode = msgspec.msgpack.Decoder(Reply).decode
        while True:
            try:
                data = process_frames.read(replies)  # type: ignore[arg-type]
                if data is None:
                    break
                reply = decode(data)
                loaded = rebuild(reply.rows, self.spool) if reply.rows is not None else []
            except Exception:
                # The pipe is no longer read, so the process must end; its pending requests are sent again or fail.
                logger.exception("invalid reply of sealer process %d: killing it", process.pid)
                process.kill()
                break
            reply.rows = None
            self._post(_ReplyCallback(self, reply, loaded).call)
        replies.close()
        code = process.wait()
        self._post(lambda: self._died(generation, process.pid, code))

    # Replies

    def replied(self, reply: Reply, loaded: list[Loaded]) -> None:
        request = self._pending.pop(reply.n, None)
        if request is not None:
            request.done(reply, loaded)
        elif self._jobs and self._jobs[0].number == reply.n:
            self._job_replied(self._jobs[0], reply)
        elif reply.written is not None:
            self.remove([reply.written["path"]])  # finished just before it was abandoned

    def _died(self, generation: int, pid: int, code: int) -> None:
        """Handle the death of a process with its pending requests."""
        if generation == self._retired_generation:
            return
        if not self._stopping.is_set():
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            logger.error("sealer process %d died (%s); it is restarted when needed", pid, how)
        # The death may be noticed when a later process writes the next segment.
        if self._jobs and self._jobs[0].is_lost_with(generation):
            self._job_failed(self._jobs[0], FAILED, _DIED)
        for request in [one for one in self._pending.values() if one.generation == generation]:
            request.tries -= 1
            if request.tries:
                request.generation = 0
                self._send(request)
            else:
                self._fail(request, _DIED)

    def _fail(self, request: _Request, text: str) -> None:
        number: int = request.fields["n"]
        if self._pending.pop(number, None) is not None:
            request.done(Reply(n=number, error=(FAILED, text)), [])
        elif self._jobs and self._jobs[0].number == number:
            self._job_failed(self._jobs[0], FAILED, text)

    # Sealing, one segment at a time

    def seal(self, task: SealTask) -> None:
        self._jobs.append(_Job(task))
        if len(self._jobs) == 1:
            self._start_job(self._jobs[0])

    def _start_job(self, job: _Job) -> None:
        self._number += 1
        job.number = self._number
        self._send_job(job, {"op": process_frames.SEAL, "directory": job.task.directory, "stream": job.task.stream})
        job.task.next_part()

    def _send_job(self, job: _Job, fields: Request) -> None:
        fields["n"] = job.number
        request = _Request(fields, _ignore, 0)
        if job.first is None:
            job.first = request
        self._send(request)

    def _active_job(self, task: SealTask) -> _Job | None:
        return self._jobs[0] if self._jobs and self._jobs[0].task is task else None

    def part(self, task: SealTask, located: Located, first: int, times: array[int]) -> None:
        job = self._active_job(task)
        if job is None:
            located.release()
            return
        job.located.append(located)
        self._send_job(
            job, {"op": process_frames.PART, "runs": located.runs.tobytes(), "first": first, "times": list(times)}
        )
        if len(job.located) < _WINDOW:
            task.next_part()

    def finish(self, task: SealTask) -> None:
        job = self._active_job(task)
        if job is not None and not job.finishing:
            job.finishing = True
            self._send_job(job, {"op": process_frames.FINISH})

    def _job_replied(self, job: _Job, reply: Reply) -> None:
        if reply.error is not None:
            self._job_failed(job, *reply.error)
        elif reply.written is not None:
            self._next_job(job)
            job.task.written(Written.read(reply.written))
        else:
            job.located.popleft().release()
            if not job.finishing:
                job.task.next_part()

    def _job_failed(self, job: _Job, kind: str, text: str) -> None:
        self._send_job(job, {"op": process_frames.ABANDON})
        self._next_job(job)
        job.task.failed(kind, text)

    def _next_job(self, job: _Job) -> None:
        job.release()
        self._jobs.remove(job)
        if self._jobs and not self._jobs[0].number:
            self._start_job(self._jobs[0])

    def abandon(self, task: SealTask) -> None:
        for job in self._jobs:
            if job.task is task:
                if job.number:
                    self._send_job(job, {"op": process_frames.ABANDON})
                self._next_job(job)
                return

    # Other operations

    def url_of(self, path: str) -> str:
        return f"{self.directory.rstrip('/')}/{path}"

    def read(self, segment: Segment, first: int, last: int, done: Callable[[list[Loaded], str, str], None]) -> None:
        def replied(reply: Reply, loaded: list[Loaded]) -> None:
            kind, text = reply.error if reply.error is not None else ("", "")
            done(loaded, kind, text)

        self._request({"op": process_frames.READ, "segment": segment.entry(), "first": first, "last": last}, replied)

    def merge(
        self, sources: list[Segment], directory: str, stream: str, done: Callable[[Written | None, str, str], None]
    ) -> None:
        def replied(reply: Reply, _: list[Loaded]) -> None:
            if reply.written is not None:
                done(Written.read(reply.written), "", "")
            else:
                kind, text = reply.error if reply.error is not None else (FAILED, "no reply")
                done(None, kind, text)

        self._request(
            {
                "op": process_frames.MERGE,
                "sources": [segment.entry() for segment in sources],
                "directory": directory,
                "stream": stream,
            },
            replied,
            tries=1,
        )

    def work(self, task: str, arguments: bytes, done: Callable[[bytes, str, str], None]) -> None:
        def replied(reply: Reply, _: list[Loaded]) -> None:
            kind, text = reply.error if reply.error is not None else ("", "")
            done(reply.result, kind, text)

        self._request({"op": process_frames.TASK, "name": task, "arguments": arguments}, replied, tries=1)

    def remove(self, paths: list[str]) -> None:
        self._request({"op": process_frames.REMOVE, "paths": paths}, _ignore)

    def find(self, directory: str, done: Callable[[list[str]], None]) -> None:
        def replied(reply: Reply, _: list[Loaded]) -> None:
            if reply.error is not None:
                logger.warning("segments in %s cannot be listed: %s", self.directory, reply.error[1])
                return
            done(reply.paths or [])

        self._request({"op": process_frames.FIND, "directory": directory}, replied)


class _ReplyCallback:
    """Passes a reply to the event loop."""

    __slots__ = ("loaded", "process", "reply")

    def __init__(self, process: SealerProcess, reply: Reply, loaded: list[Loaded]) -> None:
        self.process = process
        self.reply = reply
        self.loaded = loaded

    def call(self) -> None:
        self.process.replied(self.reply, self.loaded)


def _ignore(reply: Reply, loaded: list[Loaded]) -> None:
    """Handle a reply that carries no information."""


def _drop_callback(callback: Callable[[], None]) -> None:
    """Drop a callback: no event loop is running."""


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
