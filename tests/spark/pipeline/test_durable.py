"""Files of a table are durable before their plan, and in place before the batch is done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leveret.spark.pipeline.direct.task import DirectTask
from leveret.spark.pipeline.model import TableOutput
from leveret.spark.pipeline.output import tables
from leveret.spark.pipeline.output.files import sync_files
from leveret.spark.pipeline.output.tables import Ready, TableWriter


class LocalFiles:
    """`Files` without a JVM, recording its calls."""

    calls: list[tuple[str, list[str]]]

    def __init__(self, spark: Any, root: str) -> None:
        self.root = Path(root)

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def make_directory(self, name: str) -> None:
        (self.root / name).mkdir(parents=True, exist_ok=True)

    def remove(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)

    def move(self, source: str, target: str) -> bool:
        if not self.exists(source) or self.exists(target):
            return False
        self.calls.append(("move", [target]))
        (self.root / source).rename(self.root / target)
        return True

    def listing(self, name: str) -> list[str]:
        return sorted(os.listdir(self.root / name))

    def files_under(self, name: str) -> list[tuple[str, int]]:
        top = self.root / name
        return sorted((str(path.relative_to(top)), path.stat().st_size) for path in top.rglob("*") if path.is_file())

    def read_text(self, name: str) -> str:
        return (self.root / name).read_text()

    def write_text(self, name: str, text: str) -> None:
        self.calls.append(("plan", [name]))
        (self.root / name).write_text(text)

    @contextmanager
    def lock(self) -> Iterator[None]:
        self.calls.append(("lock", []))
        yield
        self.calls.append(("unlock", []))

    def sync(self, names: Iterable[str]) -> None:
        names = list(names)
        assert all(self.exists(name) for name in names)
        self.calls.append(("sync", names))


def test_a_batch_is_synced_before_its_plan_and_after_its_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "Files", LocalFiles)
    monkeypatch.setattr(LocalFiles, "calls", [], raising=False)
    for name in ("a", "b"):
        (tmp_path / "made").mkdir(exist_ok=True)
        (tmp_path / "made" / f"{name}.parquet").touch()
    writer = TableWriter(TableOutput(path=str(tmp_path)), "app")
    writer.write_ready(None, 7, [Ready("made/a.parquet", "day=1"), Ready("made/b.parquet", "day=2")])  # type: ignore[arg-type]
    targets = [f"day={day}/app-{7:012}-{day - 1:05}.parquet" for day in (1, 2)]
    staged = f"_leveret/app/{7:012}"
    calls = LocalFiles.calls
    at = calls.index(("plan", [f"{staged}.json"]))
    assert calls[at - 1] == ("sync", [f"{staged}/day=1/a.parquet", f"{staged}/day=2/b.parquet"])
    assert calls[at + 1 :] == [
        ("lock", []),
        ("move", [targets[0]]),
        ("move", [targets[1]]),
        ("sync", targets),
        ("unlock", []),
    ]


class Synced:
    """Records paths below a directory in the order in which they are synced."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            self.paths.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), root))
            fsync(descriptor)

        patch.setattr(os, "fsync", synced)


def test_files_checksums_and_directories_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x/day=1/.a.parquet.crc", "x/day=1/a.parquet", "x/b.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    synced = Synced(tmp_path, monkeypatch)
    sync_files(str(tmp_path), ["x/day=1/a.parquet", "x/b.parquet"])
    assert synced.paths == ["x/day=1/a.parquet", "x/day=1/.a.parquet.crc", "x/b.parquet", "x/day=1", "x", ".", ".."]


def test_a_task_syncs_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Synced(tmp_path, monkeypatch)
    task = DirectTask(str(tmp_path / "direct"))
    batch = pa.record_batch({"offset": pa.array([1, 2], pa.int64())})
    rows = list(task.rows([batch]))
    names = [name for part in rows for name in part.column("file").to_pylist() if name is not None]
    assert names and synced.paths == [f"direct/{names[0]}", "direct"]
