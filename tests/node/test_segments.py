"""The location of segments according to the configuration, and log lines of a broker without them."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leveret import Broker, sync
from leveret.broker.log import RowsAddress
from leveret.broker.segments import SegmentStore
from leveret.config import ConfigError, combine_config
from leveret.node import segments
from leveret.node.segments import make_store, segment_settings
from leveret.storage.memory import MemoryLog
from leveret.storage.sqlite import SqliteLog


def config(tmp_path: Path, **streams: Any) -> Any:
    return combine_config(("the test", {"server": {"data_dir": str(tmp_path)}, "streams": streams}))


def store(tmp_path: Path, **streams: Any) -> SegmentStore | str:
    return make_store(config(tmp_path, **streams), SqliteLog(tmp_path))


def test_places(tmp_path: Path) -> None:
    inside, outside, away = (
        store(tmp_path, **given)
        for given in ({}, {"directory": str(tmp_path / "x")}, {"directory": "memory://bucket/streams/"})
    )
    assert isinstance(inside, SegmentStore) and isinstance(outside, SegmentStore) and isinstance(away, SegmentStore)
    assert inside.url_of("a/b") == str(tmp_path / "streams" / "a/b")
    assert outside.url_of("a/b") == str(tmp_path / "x" / "a/b")
    assert away.url_of("a/b") == "memory://bucket/streams/a/b"


def test_settings(tmp_path: Path) -> None:
    made = segment_settings(config(tmp_path, segment_size="1MB", segment_age="2min", grace=0).streams)
    assert (made.size, made.age, made.grace, made.merge_below, made.sealing) == (1_000_000, 120_000, 0, 250_000, True)
    made = segment_settings(config(tmp_path, merge_below=7, sealing=False).streams)
    assert (made.size, made.merge_below, made.sealing) == (64_000_000, 7, False)


def test_options_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'streams\.storage_options_file': the file .* does not exist"):
        store(tmp_path, storage_options_file=str(tmp_path / "none.toml"))


def test_configurations_without_sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = combine_config(("the test", {"storage": {"engine": "memory"}}))
    assert make_store(in_memory, MemoryLog()) == "'storage.engine' is 'memory'"
    monkeypatch.setattr(segments, "find_spec", lambda name: None)
    assert "(make extra-segments)" in str(store(tmp_path))


class Remote(MemoryLog):
    """A log that other machines can open, as one in PostgreSQL."""

    def rows_address(self) -> RowsAddress:
        return RowsAddress("postgresql", {"dsn": "", "node": "", "lease": 1, "unreplicated": True}, is_local=False)


@pytest.mark.parametrize(
    ("given", "seals"),
    [
        ({}, False),
        ({"directory": "/somewhere"}, False),
        ({"directory": "file:///somewhere"}, False),
        ({"directory": "/somewhere", "shared": True}, True),
        ({"directory": "s3://bucket"}, True),
    ],
)
def test_logs_of_several_machines_need_a_shared_directory(tmp_path: Path, given: dict[str, Any], seals: bool) -> None:
    made = make_store(config(tmp_path, **given), Remote())
    assert made == segments.UNSHARED if not seals else isinstance(made, SegmentStore)


def test_what_other_machines_cannot_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'streams\.shared' is true without 'streams\.directory'"):
        store(tmp_path, shared=True)
    for url in ("memory://bucket", "local:///somewhere", "http://host/bucket", "https://host/bucket"):
        scheme = url.partition(":")[0]
        with pytest.raises(
            ConfigError, match=rf"'streams\.directory' .* scheme '{scheme}', which .*'streams\.shared' = true"
        ):
            make_store(config(tmp_path, directory=url), Remote())
    there = {"directory": "s3://bucket", "iceberg": True}
    with pytest.raises(ConfigError, match=r"without 'streams\.iceberg_properties_file', which other nodes do not find"):
        make_store(config(tmp_path, **there), Remote())
    (tmp_path / "catalog.toml").write_text('type = "sql"\nuri = "sqlite:////somewhere/iceberg.db"')
    there["iceberg_properties_file"] = str(tmp_path / "catalog.toml")
    with pytest.raises(ConfigError, match="names a catalog in SQLite, which other nodes do not find"):
        make_store(config(tmp_path, **there), Remote())
    (tmp_path / "catalog.toml").write_text('type = "rest"\nuri = "http://catalog"')
    assert isinstance(make_store(config(tmp_path, **there), Remote()), SegmentStore)


def test_a_broker_logs_once_that_it_does_not_seal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leveret.broker")
    with Broker() as broker, sync.connect(broker.url) as connection, connection.channel() as channel:
        channel.declare_queue("q", durable=True)
        assert "not sealed" not in caplog.text
        for name in "ab":
            channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    assert caplog.text.count("streams are not sealed, but stay in the log: 'storage.engine' is 'memory'") == 1


def test_a_broker_does_not_import_modules_of_the_sealer(tmp_path: Path) -> None:
    """Starting with streams sealed costs no import of Arrow."""
    program = (
        "import sys\nfrom leveret import Broker\n"
        f"with Broker(data_dir={str(tmp_path)!r}):\n    print([name for name in sys.modules"
        " if name.split('.')[0] in ('pyarrow', 'fsspec', 'pyiceberg')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
