"""The programs on the pages about the client print what the pages show, against a real broker process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, at_broker, page_id
from tests.docs.terminals import Scene, perform, programs, scenes
from tests.support.broker import Broker

CLIENT_PAGES = sorted((DOCS / "client").rglob("*.md"))
SCENES = [(page, scene) for page in CLIENT_PAGES for scene in scenes(page)]


@pytest.mark.parametrize(("page", "scene"), SCENES, ids=[f"{page_id(page)}-{scene.heading}" for page, scene in SCENES])
def test_programs(page: Path, scene: Scene, own_vhost: Broker, tmp_path: Path) -> None:
    for name, text in programs(page).items():
        (tmp_path / name).write_text(at_broker(text, own_vhost), "utf-8")
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
