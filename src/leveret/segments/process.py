"""The sealer process as the broker has it: started when there is something to do, ended when there has been nothing for
long, and started again when it has died.

Two threads wait for pipes, so that the event loop does not: one starts the process and writes to it, one reads its answers.
Everything else happens on the event loop. What the process was asked for when it died it is asked once more, but for
segments that it was writing: these begin anew when it is time.
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
from typing import IO, Any, Final

import msgspec

from leveret._isolation import python_command
from leveret.broker.bodies import Spool
from leveret.broker.log import Loaded, Located
from leveret.broker.segments import FAILED, SealTask, Segment, SegmentStore, Written
from leveret.segments import process_frames
from leveret.segments.process_frames import Answer, Setup
from leveret.storage import disk
from leveret.storage.located import rebuild

log = logging.getLogger("leveret.segments")

# Parts of a segment that are on their way to the process.
_WINDOW: Final = 2
# The pause before a process that did not live for _SHORT seconds is started again, doubled each time.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
_SHORT: Final = 10.0
# A process that had nothing to do for so many seconds is ended.
IDLE = 900.0
# Seconds that it gets to end.
_PATIENCE: Final = 2.0
_DIED: Final = "the sealer process has died"


class _Question:
    """Something that the process was asked for. `generation`: of the process that was asked, 0 for none yet."""

    __slots__ = ("done", "fields", "generation", "tries")

    def __init__(self, fields: dict[str, Any], done: Callable[[Answer, list[Loaded]], None], tries: int) -> None:
        self.fields = fields
        self.done = done
        self.tries = tries
        self.generation = 0


class _Job:
    """A segment that is being written."""

    __slots__ = ("finishing", "located", "number", "task")

    def __init__(self, task: SealTask) -> None:
        self.task = task
        self.number = 0
        self.located: deque[Located] = deque()
        self.finishing = False

    def release(self) -> None:
        while self.located:
            self.located.popleft().release()


class SealerProcess(SegmentStore):
    """Segments in a directory of this machine, or at any URL that fsspec knows, kept by a process of their own.

    directory     absolute path or URL
    database      the file of the log
    spool         where the broker keeps large bodies, None for in memory
    unfinished    a local directory for files that are put elsewhere
    options_file  what fsspec is told besides the URL: a file in TOML, or JSON
    catalog       properties of the Iceberg catalog, None where streams have no tables
    mode          of local segment files
    """

    def __init__(self, directory: str, database: Path, spool: Spool | None, unfinished: Path,
                 options_file: str | None = None, catalog: dict[str, str] | None = None,
                 mode: int = disk.PRIVATE_FILE) -> None:
        self.directory = directory
        self.spool = spool
        self._setup = Setup(directory=directory, database=str(database), spool=str(unfinished), options_file=options_file,
                            catalog=catalog, mode=mode)
        self._post: Callable[[Callable[[], None]], None] = _nowhere
        self._outbox: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._asked: dict[int, _Question] = {}
        self._number = 0
        self._jobs: deque[_Job] = deque()
        self._stopping = threading.Event()
        self._writer: threading.Thread | None = None
        self._generation = 0
        self._dismissed = 0
        self._pause = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    # The life of the process

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post

    def stop(self) -> None:
        self._stopping.set()
        self._post = _nowhere
        if self._writer is not None:
            self._outbox.put(None)
            self._writer.join(2 * _PATIENCE)
            if self._writer.is_alive() and self.process is not None:
                self.process.kill()  # it does not even take what it is told
                self._writer.join()
        self._asked.clear()
        while self._jobs:
            self._jobs.popleft().release()

    def _ask(self, fields: dict[str, Any], done: Callable[[Answer, list[Loaded]], None], tries: int = 2) -> int:
        self._number += 1
        fields["n"] = self._number
        question = _Question(fields, done, tries)
        self._asked[self._number] = question
        self._send(question)
        return self._number

    def _send(self, question: _Question) -> None:
        if self._writer is None and not self._stopping.is_set():
            self._writer = threading.Thread(target=self._write, name="leveret-segments", daemon=True)
            self._writer.start()
        self._outbox.put(question)

    def _write(self) -> None:
        """The thread that writes, and starts the process."""
        process: subprocess.Popen[bytes] | None = None
        began = 0.0
        while True:
            try:
                question = self._outbox.get(timeout=IDLE if process is not None else None)
            except queue.Empty:
                if process is not None and not self._asked and not self._jobs:
                    self._dismissed = self._generation
                    _end(process)
                    process = None
                continue
            if question is None:
                break
            if process is None or process.poll() is not None:
                if question.fields["op"] == process_frames.ABANDON:
                    continue
                self._pause = 0.0 if time.monotonic() - began > _SHORT else min(max(2 * self._pause, _FIRST_PAUSE),
                                                                                _LONGEST_PAUSE)
                if self._stopping.wait(self._pause):
                    break
                began = time.monotonic()
                process = self._begin()
                if process is None:
                    self._post(partial(self._fail, question, "the sealer process cannot be started"))
                    continue
            question.generation = self._generation
            assert process.stdin is not None
            try:
                octets = process_frames.encode(question.fields)
            except Exception as error:
                log.exception("a question to the sealer process cannot be encoded")
                self._post(partial(self._fail, question, f"{type(error).__name__}: {error}"))
                continue
            with contextlib.suppress(OSError):  # the other thread notices that it has died
                process.stdin.write(octets)
                if self._outbox.empty():
                    process.stdin.flush()
        if process is not None:
            _end(process)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(python_command("leveret.segments.process_main"), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, process_group=0 if os.name == "posix" else None)

    def _begin(self) -> subprocess.Popen[bytes] | None:
        try:
            process = self._spawn()
        except (OSError, subprocess.SubprocessError) as error:
            log.error("the sealer process cannot be started: %s", error)
            return None
        self._generation += 1
        self.process = process
        self.starts += 1
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write(process_frames.encode(self._setup))
        try:
            threading.Thread(target=self._read, args=(process, process.stdout, self._generation),
                             name="leveret-segments-answers", daemon=True).start()
        except RuntimeError as error:
            log.error("the thread that reads the sealer process's answers cannot be started: %s", error)
            process.kill()
            _end(process)
            return None
        log.info("sealer process %d keeps segments in %s", process.pid, self.directory)
        return process

    def _read(self, process: subprocess.Popen[bytes], answers: IO[bytes], generation: int) -> None:
        """The thread that reads what one process answers."""
        decode = msgspec.msgpack.Decoder(Answer).decode
        while True:
            try:
                octets = process_frames.read(answers)  # type: ignore[arg-type]
                if octets is None:
                    break
                answer = decode(octets)
                loaded = rebuild(answer.rows, self.spool) if answer.rows is not None else []
            except Exception:
                # Nobody would read what it answers: without it, what was asked is asked again, or fails.
                log.exception("an answer of sealer process %d cannot be read: it is ended", process.pid)
                process.kill()
                break
            answer.rows = None
            self._post(_Answered(self, answer, loaded).call)
        answers.close()
        code = process.wait()
        self._post(lambda: self._died(generation, process.pid, code))

    # Answers

    def answered(self, answer: Answer, loaded: list[Loaded]) -> None:
        question = self._asked.pop(answer.n, None)
        if question is not None:
            question.done(answer, loaded)
        elif self._jobs and self._jobs[0].number == answer.n:
            self._job_answered(self._jobs[0], answer)
        elif answer.written is not None:
            self.remove([answer.written["path"]])  # finished just before it was abandoned

    def _died(self, generation: int, pid: int, code: int) -> None:
        """A process is gone, and with it what it was asked for."""
        if generation == self._dismissed:
            return
        if not self._stopping.is_set():
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            log.error("sealer process %d has died (%s): it is started again when it is needed", pid, how)
        if self._jobs and self._jobs[0].number:
            self._job_failed(self._jobs[0], FAILED, _DIED)
        for question in [one for one in self._asked.values() if one.generation == generation]:
            question.tries -= 1
            if question.tries:
                question.generation = 0
                self._send(question)
            else:
                self._fail(question, _DIED)

    def _fail(self, question: _Question, text: str) -> None:
        number: int = question.fields["n"]
        if self._asked.pop(number, None) is not None:
            question.done(Answer(n=number, error=(FAILED, text)), [])
        elif self._jobs and self._jobs[0].number == number:
            self._job_failed(self._jobs[0], FAILED, text)

    # Sealing: one segment at a time

    def seal(self, task: SealTask) -> None:
        self._jobs.append(_Job(task))
        if len(self._jobs) == 1:
            self._begin_job(self._jobs[0])

    def _begin_job(self, job: _Job) -> None:
        self._number += 1
        job.number = self._number
        self._tell(job, {"op": process_frames.SEAL, "directory": job.task.directory, "stream": job.task.stream})
        job.task.next_part()

    def _tell(self, job: _Job, fields: dict[str, Any]) -> None:
        fields["n"] = job.number
        self._send(_Question(fields, _ignore, 0))

    def _job_of(self, task: SealTask) -> _Job | None:
        return self._jobs[0] if self._jobs and self._jobs[0].task is task else None

    def part(self, task: SealTask, located: Located, first: int, times: array[int]) -> None:
        job = self._job_of(task)
        if job is None:
            located.release()
            return
        job.located.append(located)
        self._tell(job, {"op": process_frames.PART, "runs": located.runs.tobytes(), "first": first, "times": list(times)})
        if len(job.located) < _WINDOW:
            task.next_part()

    def finish(self, task: SealTask) -> None:
        job = self._job_of(task)
        if job is not None and not job.finishing:
            job.finishing = True
            self._tell(job, {"op": process_frames.FINISH})

    def _job_answered(self, job: _Job, answer: Answer) -> None:
        if answer.error is not None:
            self._job_failed(job, *answer.error)
        elif answer.written is not None:
            self._next_job(job)
            job.task.written(_written(answer.written))
        else:
            job.located.popleft().release()
            if not job.finishing:
                job.task.next_part()

    def _job_failed(self, job: _Job, kind: str, text: str) -> None:
        self._tell(job, {"op": process_frames.ABANDON})
        self._next_job(job)
        job.task.failed(kind, text)

    def _next_job(self, job: _Job) -> None:
        job.release()
        self._jobs.remove(job)
        if self._jobs and not self._jobs[0].number:
            self._begin_job(self._jobs[0])

    def abandon(self, task: SealTask) -> None:
        for job in self._jobs:
            if job.task is task:
                if job.number:
                    self._tell(job, {"op": process_frames.ABANDON})
                self._next_job(job)
                return

    # The rest

    def url_of(self, path: str) -> str:
        return f"{self.directory.rstrip('/')}/{path}"

    def read(self, segment: Segment, first: int, last: int, done: Callable[[list[Loaded], str, str], None]) -> None:
        def answered(answer: Answer, loaded: list[Loaded]) -> None:
            kind, text = answer.error if answer.error is not None else ("", "")
            done(loaded, kind, text)

        self._ask({"op": process_frames.READ, "segment": segment.entry(), "first": first, "last": last}, answered)

    def merge(self, sources: list[Segment], directory: str, stream: str,
              done: Callable[[Written | None, str, str], None]) -> None:
        def answered(answer: Answer, _: list[Loaded]) -> None:
            if answer.written is not None:
                done(_written(answer.written), "", "")
            else:
                kind, text = answer.error if answer.error is not None else (FAILED, "no answer")
                done(None, kind, text)

        self._ask({"op": process_frames.MERGE, "sources": [segment.entry() for segment in sources], "directory": directory,
                   "stream": stream}, answered, tries=1)

    def work(self, task: str, arguments: bytes, done: Callable[[bytes, str, str], None]) -> None:
        def answered(answer: Answer, _: list[Loaded]) -> None:
            kind, text = answer.error if answer.error is not None else ("", "")
            done(answer.result, kind, text)

        self._ask({"op": process_frames.TASK, "name": task, "arguments": arguments}, answered, tries=1)

    def remove(self, paths: list[str]) -> None:
        self._ask({"op": process_frames.REMOVE, "paths": paths}, _ignore)

    def find(self, directory: str, done: Callable[[list[str]], None]) -> None:
        def answered(answer: Answer, _: list[Loaded]) -> None:
            if answer.error is not None:
                log.warning("segments in %s cannot be listed: %s", self.directory, answer.error[1])
                return
            done(answer.paths or [])

        self._ask({"op": process_frames.FIND, "directory": directory}, answered)


class _Answered:
    """An answer on its way to the event loop."""

    __slots__ = ("answer", "loaded", "process")

    def __init__(self, process: SealerProcess, answer: Answer, loaded: list[Loaded]) -> None:
        self.process = process
        self.answer = answer
        self.loaded = loaded

    def call(self) -> None:
        self.process.answered(self.answer, self.loaded)


def _written(fields: dict[str, Any]) -> Written:
    return Written(fields["id"], fields["path"], fields["count"], fields["octets"], fields["body_octets"], fields["crc32"],
                   list(fields["groups"]), fields["schema_version"], fields["footer_octets"], fields["footer_crc32"])


def _ignore(answer: Answer, loaded: list[Loaded]) -> None:
    """Nobody waits for it."""


def _nowhere(callback: Callable[[], None]) -> None:
    """There is no event loop."""


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
