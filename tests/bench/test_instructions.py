"""Instruction counts from Cachegrind reports."""

from __future__ import annotations

import pytest

from bench.instructions import counted


def test_count_is_read_from_a_report() -> None:
    assert counted("==7== \n==7== I   refs:      2,107,095,762\n") == 2_107_095_762
    assert counted("==7== I refs:        12\n") == 12


def test_report_without_a_count_is_refused() -> None:
    with pytest.raises(ValueError, match="no count"):
        counted("==7== D refs: 7\n")
