"""The available memory, and the part of it that may be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.node.composition import memory_limit, memory_size


def test_the_memory_of_a_container_is_its_limit(tmp_path: Path) -> None:
    whole = memory_size(())
    assert whole > 1 << 26
    for content, expected in (("1000000\n", 1000000), ("max\n", whole), (str(whole * 2), whole)):
        (tmp_path / "memory.max").write_text(content)
        assert memory_size((tmp_path / "memory.max", tmp_path / "missing")) == expected


@pytest.mark.parametrize(("watermark", "share"), [(0.5, True), (1.0, True), (2e9, False), (0.0, True)])
def test_the_watermark_is_a_share_or_bytes(watermark: float, share: bool) -> None:
    assert memory_limit(watermark) == (int(memory_size() * watermark) if share else int(watermark))
