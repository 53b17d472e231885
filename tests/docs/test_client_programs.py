"""The programs on the pages about the client print what the pages show, against a real broker process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret import sync
from tests.docs.pages import DOCS, at_broker, page_id
from tests.docs.terminals import Scene, perform, programs, scenes
from tests.support.broker import Broker

CLIENT_PAGES = sorted((DOCS / "client").rglob("*.md"))
SCENES = [(page, scene) for page in CLIENT_PAGES for scene in scenes(page)]

# Names in the programs. The pages declare named objects with a literal.
_QUEUE = re.compile(r'declare_queue\(\s*"([^"]+)"')
_EXCHANGE = re.compile(r'declare_exchange\(\s*"([^"]+)"')


@pytest.fixture
def clean(broker: Broker) -> Iterator[Broker]:
    """Remove the objects that programs of any page declare."""
    _clean(broker)
    yield broker
    _clean(broker)


def _clean(broker: Broker) -> None:
    text = "\n".join(text for page in CLIENT_PAGES for text in programs(page).values())
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        for queue in set(_QUEUE.findall(text)):
            channel.delete_queue(queue)
        for exchange in set(_EXCHANGE.findall(text)):
            channel.delete_exchange(exchange)


@pytest.mark.parametrize(("page", "scene"), SCENES, ids=[f"{page_id(page)}-{scene.heading}" for page, scene in SCENES])
def test_programs(page: Path, scene: Scene, clean: Broker, tmp_path: Path) -> None:
    for name, text in programs(page).items():
        (tmp_path / name).write_text(at_broker(text, clean), "utf-8")
    perform(scene, tmp_path)


@pytest.mark.parametrize("page", CLIENT_PAGES, ids=page_id)
def test_every_program_is_run(page: Path) -> None:
    run = {command.words[1] for scene in scenes(page) for command in scene.commands}
    assert run == programs(page).keys()


def test_every_pattern_has_a_page_with_programs_in_both_faces() -> None:
    patterns = {"work-queue", "publish-subscribe", "routing", "topics", "rpc", "publishing", "dead-letters", "retries"}
    for pattern in patterns:
        texts = programs(DOCS / "client" / f"{pattern}.md").values()
        assert any("leveret.connect(" in text for text in texts), pattern
        assert any("leveret.sync.connect(" in text for text in texts), pattern
