"""Some system calls of the store fail; `bench/syscalls.py` makes each of them fail in every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import syscalls
from tests.faults.crash.power import build_library
from tests.support.broker import leveret_only


@pytest.mark.slow
def test_no_confirmed_message_is_lost(tmp_path: Path) -> None:
    leveret_only("the calls of its store fail")
    library = build_library(tmp_path) or pytest.skip("no C compiler for the library that makes calls fail")
    counts, wrong = syscalls.run(1, 400, library, 1)
    assert not wrong
    assert counts["calls failed"] > 10
    assert any("stopped with a message" in name for name in counts), counts
