"""Sealed streams of nodes in an object store with the interface of S3. `make objects` installs it."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cluster.sharded import running
from tests.cluster.test_node_segments import dsn, publish, read, show
from tests.cluster.test_nodes import Node
from tests.support.broker import ROOT, free_port
from tests.support.polling import wait_until
from tests.support.postgres import execute

__all__ = ["dsn"]

PYTHON = ROOT / "build" / "objects" / "bin" / "python"
BUCKET = "streams"
DIRECTORY = f"s3://{BUCKET}/of/nodes"
# Prints the numbers of rows of segments, as a program does that reads them without a broker.
COUNT = """
import json, sys
import fsspec
from pyarrow.parquet import ParquetFile

options, *urls = json.load(sys.stdin)
counts = []
for url in urls:
    with fsspec.open(url, **options) as file:
        counts.append(ParquetFile(file).metadata.num_rows)
print(json.dumps(counts))
"""


class ObjectStore:
    """A server on a free port, with a bucket."""

    def __init__(self, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.options = {"key": "key", "secret": "secret", "endpoint_url": self.url}
        with (directory / "objects.log").open("wb") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", self.url.rpartition(":")[2]], stdout=log, stderr=log
            )
        wait_until(self._has_bucket, (directory / "objects.log").read_text)

    def _has_bucket(self) -> bool:
        assert self.process.poll() is None
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")):
                return True
        except urllib.error.URLError:
            return False

    def names(self) -> set[str]:
        """Return the names of the objects, without directories."""
        with urllib.request.urlopen(f"{self.url}/{BUCKET}?list-type=2") as answer:
            keys = [element.text or "" for element in ElementTree.parse(answer).iter() if element.tag.endswith("}Key")]
        return {key.rpartition("/")[2] for key in keys}

    def rows(self, urls: list[str]) -> list[int]:
        """Return the numbers of rows of segments."""
        asked = json.dumps([self.options, *urls])
        done = subprocess.run([PYTHON, "-c", COUNT], input=asked, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        found: list[int] = json.loads(done.stdout)
        return found

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    if not PYTHON.exists():
        pytest.skip("no object store is installed: run `make objects`")
    store = ObjectStore(tmp_path)
    yield store
    store.stop()


@pytest.mark.slow
def test_nodes_seal_to_an_object_store(tmp_path: Path, dsn: str, store: ObjectStore) -> None:
    """Another node takes over, reads and continues; a program without a broker reads the same."""
    options = tmp_path / "options.json"
    options.write_text(json.dumps(store.options), "utf-8")
    shared: dict[str, Any] = {
        "LEVERET_STREAMS__DIRECTORY": DIRECTORY,
        "LEVERET_STREAMS__STORAGE_OPTIONS_FILE": str(options),
        "LEVERET_STREAMS__GRACE": "0",
    }
    first, second = (Node(tmp_path / name, dsn, "a", **shared) for name in ("first", "second"))
    for node in (first, second):
        node.python = str(PYTHON)
    with running(first), running(second):
        assert first.ask("status")["unsealed"] == ""
        publish(first, 0, 50)
        first.ask("streams.seal", vhost="a", name="s")
        wait_until(lambda: show(second)["unsealed"] == 0, lambda: str(show(second)))
        sealed = store.names()
        assert len(sealed) == 1
        publish(first, 50, 60)
        shard = first.placed()["a"]
        first.kill()
        wait_until(
            lambda: execute(dsn, f"SELECT node FROM leveret.owner WHERE shard = {shard}") == [("second",)], second.log
        )
        assert read(second, 60) == [b"%d" % number for number in range(60)]
        publish(second, 60, 70)
        second.ask("streams.seal", vhost="a", name="s")
        wait_until(lambda: show(second)["unsealed"] == 0, lambda: str(show(second)))
        urls = [str(segment["path"]) for segment in second.ask("streams.segments", vhost="a", name="s")]
        # Nothing but the segments in the manifest is left.
        wait_until(lambda: store.names() == {url.rpartition("/")[2] for url in urls}, lambda: str(store.names()))
        assert sum(store.rows(urls)) == 70
        second.stop()
        second.start()
        assert read(second, 70) == [b"%d" % number for number in range(70)]
        first.start()
