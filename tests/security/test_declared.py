"""Users declared in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.config import ConfigError, load_config
from leveret.security.declared import declared_users
from leveret.security.passwords import Hasher
from leveret.security.permissions import Permission
from leveret.security.users import User, UserLimits, UserStore


def test_declared_users_log_in(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes("pässword\r\nmore\n".encode())
    path = tmp_path / "leveret.toml"
    hashed = Hasher().hash(b"hashed")
    path.write_text(
        f"""
        [users.clear]
        password = "cl\u00e4r"
        tags = ["a", "b"]
        permissions."/" = {{ configure = "c", write = "w", read = "r" }}
        limits = {{ max_connections = 1, max_channels = 2 }}
        [users.hashed]
        password_hash = "{hashed}"
        [users.file]
        password_file = "password"
        [users.none]
    """,
        "utf-8",
    )
    store = UserStore()
    store.declare(declared_users(load_config(path, {}).users))
    assert store.get("clear") == User(
        name="clear", tags=("a", "b"), permissions={"/": Permission("c", "w", "r")}, limits=UserLimits(1, 2)
    )
    assert store.verify("clear", "cl\u00e4r".encode())
    assert store.verify("hashed", b"hashed")
    assert store.verify("file", "pässword".encode())
    assert not store.verify("none", b"")


@pytest.mark.parametrize("content", [None, b"", b"\nsecret\n"])
def test_a_password_file_without_a_password(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "password").write_bytes(content)
    config = load_config(None, {}, [("users.a.password_file", str(tmp_path / "password"))])
    with pytest.raises(ConfigError, match=r"users\.a\.password_file: .*password (cannot be read: No such|is empty)"):
        declared_users(config.users)
