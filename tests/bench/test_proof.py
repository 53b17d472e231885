"""The counts of long proofs: checked-in results and those of this checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import proof


def line(commit: str, rounds: int) -> str:
    counts = {"rounds": rounds}
    return json.dumps(
        {"commit": commit, "proof": "kill9", "piece": 0, "seed": 1, "seconds": 9, "counts": counts, "wrong": []}
    )


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    kept, own = tmp_path / "proofs.jsonl", tmp_path / "build" / "results.jsonl"
    own.parent.mkdir()
    monkeypatch.setattr(proof, "KEPT", kept)
    monkeypatch.setattr(proof, "RESULTS", own)
    return kept, own


def test_without_results(files: tuple[Path, Path]) -> None:
    assert proof.results() == []


def test_results_of_both_files_are_counted_once(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    kept, own = files
    kept.write_text(line("a", 500) + "\n")
    own.write_text(line("a", 500) + "\n" + line("a", 300) + "\n")
    proof.report()
    assert capsys.readouterr().out.split() == ["a", "kill9", "800", "rounds", "of", "1,000", "a", "kill9", "0", "wrong"]


def test_kept_results_leave_out_uncommitted_changes(files: tuple[Path, Path]) -> None:
    kept, own = files
    kept.write_text(line("a", 500) + "\n")
    own.write_text(line("a", 300) + "\n" + line("b+", 7) + "\n")
    proof.keep()
    proof.keep()
    assert kept.read_text() == line("a", 500) + "\n" + line("a", 300) + "\n"
