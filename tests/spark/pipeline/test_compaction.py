"""Compaction of tables: each row once for every reader at any time, whatever is killed. Without Spark."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import DayTransform

from leveret.cli.app import leveret
from leveret.spark.pipeline import PipelineError, TableOutput, compact
from leveret.spark.pipeline.compaction import delta, directory, iceberg, merging
from leveret.spark.pipeline.output.table_lock import lock_compaction, lock_table
from tests.support.broker import ROOT

ROWS = 10
DAYS = ("2026-11-22", "2026-11-23")


def rows(first: int, day: str = DAYS[0]) -> pa.Table:
    at = pa.array([f"{day}T00:00:{number:02}Z" for number in range(ROWS)]).cast(pa.timestamp("us", "UTC"))
    return pa.table({"id": pa.array(range(first, first + ROWS), pa.int64()), "at": at})


def name_of(number: int) -> str:
    return f"app-{number:012}-00000.parquet"


def write_files(root: Path, count: int) -> list[Path]:
    """Write files of ten rows, alternately for two days."""
    found = []
    for number in range(count):
        day = DAYS[number % 2]
        path = root / f"day={day}" / name_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows(number * ROWS, day), path)
        found.append(path)
    return found


def ids(root: Path) -> list[int]:
    """Return what a reader sees that knows nothing but directories, in the order of the files' names."""
    found: list[int] = []
    for place, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith(("_", ".")))
        for name in sorted(files):
            if name.endswith(".parquet") and not name.startswith("."):
                found += pq.ParquetFile(Path(place, name)).read().column("id").to_pylist()
    return found


def parquet(root: Path) -> TableOutput:
    return TableOutput(path=str(root))


def kill_compactions(format: str, path: Path) -> int:
    """Run compactions of copies of a table that are killed; return the number of copies."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.pipeline.kill_compaction", format, path / "table", path / "copies"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        timeout=250,
        check=True,
    )
    return int(done.stdout)


def partition(number: int) -> list[int]:
    return [row for file in range(number, 6, 2) for row in range(file * ROWS, (file + 1) * ROWS)]


# Directories


def test_small_files_of_a_partition_become_one_with_the_same_rows_in_order(tmp_path: Path) -> None:
    write_files(tmp_path, 6)
    before = ids(tmp_path)
    (tmp_path / f"day={DAYS[0]}" / f".{name_of(0)}.crc").write_bytes(b"checksums")
    assert compact(parquet(tmp_path), min_age=0) == merging.Compacted(partitions=2, removed=6, added=2)
    assert ids(tmp_path) == before == partition(0) + partition(1)
    (merged,) = (tmp_path / f"day={DAYS[0]}").iterdir()
    assert pq.read_schema(merged).equals(rows(0).schema, check_metadata=True)
    assert not (tmp_path / "_leveret" / "compaction").exists()
    # Nothing is left to do, and later files are merged with those that are merged already.
    assert compact(parquet(tmp_path), min_age=0) == merging.Compacted()
    pq.write_table(rows(100), merged.with_name(name_of(9)))
    assert compact(parquet(tmp_path), min_age=0) == merging.Compacted(partitions=1, removed=2, added=1)
    assert ids(merged.parent) == [*partition(0), *range(100, 110)]


def test_large_files_stay_and_files_with_other_columns_are_merged_separately(tmp_path: Path) -> None:
    place = tmp_path / "day=2026-11-22"
    place.mkdir()
    large = pa.table({"id": pa.array(range(1000, 6000), pa.int64())})
    pq.write_table(large, place / "large.parquet")
    target = 2 * (place / "large.parquet").stat().st_size
    inode = (place / "large.parquet").stat().st_ino
    for number in range(4):
        table = rows(number * ROWS)
        pq.write_table(table if number % 2 else table.append_column("new", table["id"]), place / name_of(number))
    assert compact(parquet(tmp_path), min_age=0, target_bytes=target) == merging.Compacted(1, 4, 2)
    assert (place / "large.parquet").stat().st_ino == inode
    assert sorted(ids(tmp_path)) == [*range(40), *range(1000, 6000)]
    assert sorted(len(pq.read_schema(path).names) for path in place.iterdir()) == [1, 2, 3]


def test_groups_end_at_the_target_size() -> None:
    schema = pa.schema([("id", pa.int64())])
    sizes = [30, 30, 60, 30, 30, 40, 30]
    found = merging.groups(range(7), sizes.__getitem__, lambda _: schema, 100)
    assert found == [[0, 1, 3, 4], [5, 6]]
    assert merging.groups(range(1), sizes.__getitem__, lambda _: schema, 100) == []


def test_partitions_that_have_changed_recently_are_left(tmp_path: Path) -> None:
    for path in write_files(tmp_path, 4)[::2]:
        os.utime(path, (0, 0))
    assert compact(parquet(tmp_path)) == merging.Compacted(partitions=1, removed=2, added=1, young=1)


def test_a_file_that_arrives_meanwhile_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_files(tmp_path, 6)[0]
    before = ids(tmp_path)
    merge = merging.merge

    def merge_while_a_writer_adds(sources: Any, target: str) -> None:
        merge(sources, target)
        if DAYS[0] in target:
            pq.write_table(rows(100), first.with_name(name_of(9)))

    monkeypatch.setattr(directory, "merge", merge_while_a_writer_adds)
    assert compact(parquet(tmp_path), min_age=0) == merging.Compacted(partitions=1, removed=3, added=1, busy=1)
    assert sorted(ids(tmp_path)) == sorted([*before, *range(100, 110)])


def test_partitions_of_an_unfinished_batch_are_left(tmp_path: Path) -> None:
    """A repeated batch looks for the files that it has moved."""
    write_files(tmp_path, 6)
    own = tmp_path / "_leveret" / "app"
    (own / f"{4:012}").mkdir(parents=True)
    (own / f"{4:012}.json").write_text(json.dumps([["x.parquet", f"day={DAYS[0]}/{name_of(4)}"]]))
    assert compact(parquet(tmp_path), min_age=0) == merging.Compacted(partitions=1, removed=3, added=1, busy=1)
    (own / f"{4:012}").rmdir()
    assert compact(parquet(tmp_path), min_age=0) == merging.Compacted(partitions=1, removed=3, added=1)


def test_no_writer_moves_files_while_a_directory_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, 6)
    exchange = directory._exchange
    locked: list[bool] = []

    def exchange_while_a_writer_waits(one: Path, other: Path) -> None:
        with open(tmp_path / "_leveret" / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                locked.append(True)
        exchange(one, other)

    monkeypatch.setattr(directory, "_exchange", exchange_while_a_writer_waits)
    assert compact(parquet(tmp_path), min_age=0).partitions == 2
    assert locked == [True, True]
    with lock_table(tmp_path, exclusive=False), lock_table(tmp_path, exclusive=False):
        pass  # writers do not wait for each other, nor for a compaction that has ended


def test_writers_need_no_locks_that_the_file_system_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_table(tmp_path, exclusive=False):
        pass
    with pytest.raises(OSError, match="no locks"), lock_table(tmp_path, exclusive=True):
        pass


def test_a_compaction_killed_before_any_step_loses_and_repeats_nothing(tmp_path: Path) -> None:
    write_files(tmp_path / "table", 6)
    expected = ids(tmp_path / "table")
    copies = kill_compactions("parquet", tmp_path)
    assert copies > 30
    merged = 0
    for number in range(copies):
        copy = tmp_path / "copies" / str(number)
        assert ids(copy) == expected, number
        merged += len(list(copy.glob("day=*/*.parquet"))) < 6
        compact(parquet(copy), min_age=0)
        assert ids(copy) == expected, number
        assert len(list(copy.glob("day=*/*.parquet"))) == 2, number
        assert sorted(path.name for path in (copy / "_leveret").iterdir()) == ["compaction.lock", "lock"]
    # Some were killed before the first directory was replaced, and some after.
    assert 0 < merged < copies


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda root: pq.write_table(rows(0), root / "a.parquet"), "has no partitions, .* use a partition, or format"),
        (lambda root: (root / "_delta_log").mkdir(), "is a table of Delta"),
        (lambda root: (root / "metadata").mkdir(), "is a table of Iceberg"),
        (lambda root: (root / "_spark_metadata").mkdir(), "is a table of a Spark streaming query"),
        (lambda root: (root / f"day={DAYS[0]}" / "inner").mkdir(), "has both files and directories"),
    ],
)
def test_what_cannot_be_replaced_in_one_step_is_refused(
    tmp_path: Path, prepare: Callable[[Path], object], expected: str
) -> None:
    write_files(tmp_path, 4)
    prepare(tmp_path)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.parquet")}
    with pytest.raises(PipelineError, match=expected):
        compact(parquet(tmp_path), min_age=0)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.parquet")} == before


def test_other_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="can only be compacted on a local file system"):
        compact(TableOutput(path="s3a://bucket/table"))
    with pytest.raises(PipelineError, match="does not exist"):
        compact(parquet(tmp_path / "missing"))
    with pytest.raises(PipelineError, match="is not a Delta table"):
        compact(TableOutput(path=str(tmp_path), format="delta"))
    with pytest.raises(PipelineError, match="does not exist, or has another catalog"):
        compact(TableOutput(path=str(tmp_path), format="iceberg"))
    with lock_compaction(tmp_path), pytest.raises(PipelineError, match="is being compacted by another process"):
        compact(parquet(tmp_path))


def test_the_command_compacts_the_tables_of_a_file(tmp_path: Path) -> None:
    for name in ("one", "bad"):
        write_files(tmp_path / name, 4)
    (tmp_path / "pipeline.toml").write_text(
        'name = "shop"\ndirectory = "state"\n[flows.orders]\ncapture = { exchange = "orders" }\n'
        'decode = { format = "json", schema = "id BIGINT", quarantine = "bad" }\n'
        'tables = [{ path = "one" }, { path = "not-written-yet" }]\n'
    )
    command = ["pipeline", "compact", str(tmp_path / "pipeline.toml"), "--min-age", "0"]
    result = CliRunner().invoke(leveret, command)
    assert result.exit_code == 0, result.output
    assert [line.partition(": ")[2] for line in result.output.splitlines()] == [
        "4 files became 2 in 2 partitions; 0 partitions are not finished, 0 were changed meanwhile"
    ] * 2
    (tmp_path / "one" / "_delta_log").mkdir()
    result = CliRunner().invoke(leveret, command)
    assert result.exit_code == 1
    assert "is a table of Delta" in result.output and "1 tables were not compacted" in result.output


# Tables with a log


def delta_table(root: Path) -> TableOutput:
    for number in range(6):
        day = DAYS[number % 2]
        table = rows(number * ROWS, day).append_column("day", pa.array([day] * ROWS))
        write_deltalake(root, table, partition_by=["day"], mode="append")
    return TableOutput(path=str(root), format="delta")


def delta_ids(root: Path) -> list[int]:
    found: list[int] = DeltaTable(root).to_pyarrow_table().column("id").to_pylist()
    return sorted(found)


def iceberg_table(root: Path) -> TableOutput:
    files = write_files(root, 6)
    (root / "_leveret").mkdir()
    catalog = load_catalog("leveret", type="sql", uri=f"sqlite:///{root}/_leveret/catalog.sqlite")
    catalog.create_namespace("leveret")
    table = catalog.create_table("leveret.table", rows(0).schema, location=f"file://{root}")
    with table.update_spec() as update:
        update.add_field("at", DayTransform(), "at_day")
    for path in files:
        table.add_files([f"file://{path}"])
    return TableOutput(path=str(root), format="iceberg")


def iceberg_scan(root: Path) -> Any:
    catalog = load_catalog("leveret", type="sql", uri=f"sqlite:///{root}/_leveret/catalog.sqlite")
    return catalog.load_table("leveret.table").scan()


def iceberg_ids(root: Path) -> list[int]:
    return sorted(iceberg_scan(root).to_arrow().column("id").to_pylist())


LOGGED = [(delta_table, delta_ids), (iceberg_table, iceberg_ids)]
Made = tuple[Callable[[Path], TableOutput], Callable[[Path], list[int]]]


@pytest.fixture(params=LOGGED, ids=["delta", "iceberg"])
def made(request: pytest.FixtureRequest) -> Made:
    found: Made = request.param
    return found


def test_a_table_with_a_log_is_compacted_by_one_commit_per_partition(tmp_path: Path, made: Made) -> None:
    make, read = made
    output = make(tmp_path / "table")
    assert compact(output) == merging.Compacted(young=2)
    assert compact(output, min_age=0) == merging.Compacted(partitions=2, removed=6, added=2)
    assert read(tmp_path / "table") == [*range(60)]
    assert compact(output, min_age=0) == merging.Compacted()


def test_partitions_of_iceberg_still_skip_files_after_a_compaction(tmp_path: Path) -> None:
    output = iceberg_table(tmp_path / "table")
    compact(output, min_age=0)
    scan = iceberg_scan(tmp_path / "table").filter(f"at < '{DAYS[1]}T00:00:00+00:00'")
    assert len(list(scan.plan_files())) == 1
    assert sorted(scan.to_arrow().column("id").to_pylist()) == partition(0)


def test_partition_values_of_delta_with_special_characters_and_null(tmp_path: Path) -> None:
    kinds = ["a/b c%", None, "ü"]
    for number in range(3):
        table = pa.table({"id": [number * 3 + at for at in range(3)], "kind": kinds})
        write_deltalake(tmp_path, table, partition_by=["kind"], mode="append")
    before = len(DeltaTable(tmp_path).file_uris())
    assert compact(TableOutput(path=str(tmp_path), format="delta"), min_age=0).removed == before
    table = DeltaTable(tmp_path).to_pyarrow_table()
    found = sorted(zip(table["id"].to_pylist(), table["kind"].to_pylist(), strict=True))
    assert [kind for _, kind in found] == kinds * 3


def test_only_one_compaction_of_a_table_runs(tmp_path: Path, made: Made) -> None:
    """Two compactions of a Delta table at once would repeat rows."""
    make, read = made
    output = make(tmp_path / "table")
    with lock_compaction(tmp_path / "table"), pytest.raises(PipelineError, match="is being compacted by another process"):
        compact(output, min_age=0)
    assert compact(output, min_age=0).partitions == 2
    assert read(tmp_path / "table") == [*range(60)]


def test_files_that_are_replaced_or_deleted_meanwhile_do_not_return(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, read = made
    output = make(tmp_path / "table")
    changed: list[object] = []

    def change_in_between(one: Callable[..., merging.Compacted], change: Callable[[], object]) -> Callable[..., Any]:
        def compact_partition(*arguments: Any) -> merging.Compacted:
            if not changed:
                changed.append(True)
                change()
            return one(*arguments)

        return compact_partition

    def delete() -> None:
        DeltaTable(tmp_path / "table").delete("id >= 30")

    def compact_elsewhere() -> None:
        iceberg.compact_table(output, merging.Limits(1 << 20, 0))

    for module, change in ((delta, delete), (iceberg, compact_elsewhere)):
        monkeypatch.setattr(module, "_compact_partition", change_in_between(module._compact_partition, change))
    assert compact(output, min_age=0).busy
    assert read(tmp_path / "table") == [*range(30 if output.format == "delta" else 60)]


def test_a_table_with_a_log_survives_kills_of_its_compaction(tmp_path: Path, made: Made) -> None:
    make, read = made
    output = make(tmp_path / "table")
    unchanged = 0
    for number in range(kill_compactions(output.format, tmp_path)):
        copy = tmp_path / "copies" / str(number)
        assert read(copy) == [*range(60)], number
        # Iceberg's metadata names files of the original, which a compaction does not change.
        done = compact(TableOutput(path=str(copy), format=output.format, table="leveret.table"), min_age=0)
        unchanged += done.partitions == 2
        assert read(copy) == [*range(60)], number
    assert unchanged
