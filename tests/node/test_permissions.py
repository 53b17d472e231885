"""Files that other users can access are logged at the start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from leveret.config import combine_config
from leveret.node.permissions import warn_about_permissions
from leveret.node.segments import make_store
from leveret.storage.sqlite import SqliteLog


def test_loose_files_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "leveret.serve")
    (tmp_path / "staged").mkdir()
    secret = tmp_path / "elsewhere" / "password"
    secret.parent.mkdir()
    for path, mode in (
        (tmp_path / "log-0.sqlite", 0o644),
        (tmp_path / "log-0.lock", 0o600),
        (tmp_path / "staged" / "abc", 0o620),
        (secret, 0o644),
    ):
        path.touch()
        path.chmod(mode)
    config = combine_config(
        ("the test", {"server": {"data_dir": str(tmp_path)}, "users": {"ana": {"password_file": str(secret)}}})
    )
    warn_about_permissions(config, True)
    first, second = caplog.messages
    assert "log-0.sqlite, staged/abc;" in first
    assert f"chmod go= {tmp_path}/log-0.sqlite {tmp_path}/staged/abc" in first
    assert f"'users.ana.password_file': other users can read or change {secret}, which has mode 0644" in second


def test_private_files_are_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "leveret.serve")
    (tmp_path / "log-0.sqlite").touch(0o600)
    config = combine_config(("the test", {"server": {"data_dir": str(tmp_path)}}))
    warn_about_permissions(config, True)
    assert not caplog.messages


@pytest.mark.parametrize(("setting", "expected"), [("0600", 0o700), ("0640", 0o710)])
def test_the_data_directory_lets_a_group_pass_to_the_segments(tmp_path: Path, setting: str, expected: int) -> None:
    path = tmp_path / "data"
    config = combine_config(("the test", {"server": {"data_dir": str(path)}, "storage": {"segments_mode": setting}}))
    path.mkdir(mode=0o700)
    make_store(config, SqliteLog(path))
    assert path.stat().st_mode & 0o777 == expected
