"""A store of segments in memory, which replies on request."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from typing import Any

from leveret.broker.log import Loaded, Located, Row
from leveret.broker.message import Message
from leveret.broker.segments import MISSING, SealTask, Segment, SegmentStore, Written
from leveret.storage.memory import MemoryLog
from tests.broker.support import LocatedEntries, body_of


class MemoryStore(SegmentStore):
    """`files` by path: (offset, time, message, overlay) of each message; what a crash leaves, too.

    held     replies wait in `waiting` for `answer`; without it they are posted at once
    fault    kind and text of a failure, None for none
    """

    def __init__(self, held: bool = False) -> None:
        self.files: dict[str, list[tuple[int, int, Message, Any]]] = {}
        self.held = held
        self.fault: tuple[str, str] | None = None
        self.waiting: list[Callable[[], None]] = []
        self.writing: dict[int, list[tuple[int, int, Message, Any]]] = {}
        self.located: list[LocatedEntries] = []
        self.reads: list[tuple[str, int, int]] = []
        self.removed: list[str] = []
        self.number = 0
        self.tasks: list[tuple[str, dict[str, Any]]] = []
        self.tables: dict[str, list[str]] = {}
        self.post: Callable[[Callable[[], None]], None] | None = None

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        self.post = post

    def stop(self) -> None:
        pass

    def _reply(self, callback: Callable[[], None]) -> None:
        if self.held:
            self.waiting.append(callback)
        else:
            assert self.post is not None
            self.post(callback)

    def answer(self, count: int = -1) -> None:
        """Post this many pending replies, all of them with -1."""
        assert self.post is not None
        while self.waiting and count:
            self.post(self.waiting.pop(0))
            count -= 1

    def url_of(self, path: str) -> str:
        return f"memory://{path}"

    def seal(self, task: SealTask) -> None:
        self.writing[id(task)] = []
        self._reply(lambda: task.next_part() if id(task) in self.writing else None)

    def part(self, task: SealTask, located: Located, first: int, times: array[int]) -> None:
        assert isinstance(located, LocatedEntries)
        self.located.append(located)
        spread = [time for count, time in zip(times[::2], times[1::2], strict=True) for _ in range(count)]
        rows = self.writing[id(task)]
        for index, (entry, time) in enumerate(zip(located.entries, spread, strict=True)):
            assert entry.seq == first + index + 1
            rows.append((first + index, time, entry.message, entry.overlay))
        located.release()
        if self.fault is not None:
            kind, text = self.fault
            del self.writing[id(task)]
            self._reply(lambda: task.failed(kind, text))
        else:
            self._reply(lambda: task.next_part() if id(task) in self.writing else None)

    def finish(self, task: SealTask) -> None:
        written = self._write(task.directory, self.writing.pop(id(task)))
        self._reply(lambda: task.written(written))

    def _write(self, directory: str, rows: list[tuple[int, int, Message, Any]]) -> Written:
        self.number += 1
        name = f"{rows[0][0]:020d}-{self.number}"
        path = f"{directory}/{name}.parquet"
        self.files[path] = rows
        n_bytes = sum(message.size for _, _, message, _ in rows)
        return Written(name, path, len(rows), n_bytes // 2, n_bytes, 1, [len(rows)], 1)

    def abandon(self, task: SealTask) -> None:
        self.writing.pop(id(task), None)

    def read(self, segment: Segment, first: int, last: int, done: Callable[[list[Loaded], str, str], None]) -> None:
        self.reads.append((segment.path, first, last))
        rows = self.files.get(segment.path)
        if rows is None:
            self._reply(lambda: done([], MISSING, "there is no such file"))
            return
        nowhere = Row(MemoryLog(), 0, 0)
        loaded = []
        for offset, time, old, overlay in rows:
            if first <= offset <= last:
                message = Message(
                    old.address,
                    old.header,
                    body_of(old),
                    old.size,
                    old.persistent,
                    old.priority,
                    old.expires_at,
                    old.headers_at,
                    0,
                    old.format,
                )
                item = Loaded(offset + 1, nowhere, 0, message, overlay, 0, 0)
                item.time = time
                loaded.append(item)
        self._reply(lambda: done(loaded, "", ""))

    def merge(
        self, sources: list[Segment], directory: str, stream: str, done: Callable[[Written | None, str, str], None]
    ) -> None:
        if self.fault is not None:
            kind, text = self.fault
            self._reply(lambda: done(None, kind, text))
            return
        written = self._write(directory, [row for segment in sources for row in self.files[segment.path]])
        self._reply(lambda: done(written, "", ""))

    def work(self, task: str, arguments: bytes, done: Callable[[bytes, str, str], None]) -> None:
        """`rewrite`: a rule is a text, and messages with it in their bodies are removed.

        `tables` has the paths by owner.
        """
        call = json.loads(arguments)
        self.tasks.append((task, call))
        if self.fault is not None:
            kind, text = self.fault
            self._reply(lambda: done(b"", kind, text))
            return
        answer = self._rewritten(call) if task == "rewrite" else self._table(task, call)
        self._reply(lambda: done(json.dumps(answer).encode(), "", ""))

    def _rewritten(self, call: dict[str, Any]) -> dict[str, Any]:
        rows = self.files[call["segment"]["path"]]
        left = [row for row in rows if not any(rule.encode() in body_of(row[2]) for rule in call["rules"])]
        counts = {"rows": len(rows), "matched": len(rows) - len(left)}
        if len(left) == len(rows) or call["dry_run"]:
            return {"segment": None, "counts": counts}
        self.number += 1
        path = f"{call['directory']}/rewritten-{self.number}.parquet"
        self.files[path] = left
        n_bytes = sum(message.size for _, _, message, _ in left)
        return {
            "counts": counts,
            "segment": {
                "id": f"rewritten-{self.number}",
                "path": path,
                "count": len(left),
                "octets": n_bytes // 2,
                "body_octets": n_bytes,
                "crc32": 1,
                "groups": [len(left)],
                "schema_version": 1,
                "footer_octets": 0,
                "footer_crc32": 0,
            },
        }

    def _table(self, task: str, call: dict[str, Any]) -> dict[str, Any]:
        if task == "drop-table":
            self.tables.pop(call["owner"], None)
        else:
            self.tables[call["owner"]] = call["paths"]
        return {"table": f"default.{call['stream']}"}

    def remove(self, paths: list[str]) -> None:
        for path in paths:
            self.files.pop(path, None)
            self.removed.append(path)

    def find(self, directory: str, done: Callable[[list[str]], None]) -> None:
        found = [path for path in self.files if path.startswith(directory + "/")]
        self._reply(lambda: done(found))
