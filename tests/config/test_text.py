"""Errors of JSON files name the line and the column; every encoding of JSON is read."""

from __future__ import annotations

import pytest

from leveret._text import read_json


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be"])
def test_an_encoding_is_recognized(encoding: str) -> None:
    assert read_json('{"ü": [1]}'.encode(encoding)) == {"ü": [1]}
    with pytest.raises(ValueError, match=r"^line 2, column 6: expected ',' delimiter$"):
        read_json('{"ü":\n "ä" "b"}'.encode(encoding))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1, column 1: expected value"),
        (b'{"a": NaN}', "line 1, column 7: invalid character"),
        (b'{"a": 1}\nx', "line 2, column 1: extra data"),
        (b'{"a', "line 1, column 2: unterminated string"),
        (b'{"\n\xff": 1}', "line 2, column 1: not UTF-8"),
        (b"[" * 100_000, "objects and lists are nested too deeply"),
    ],
)
def test_an_error_has_a_position(content: bytes, message: str) -> None:
    with pytest.raises(ValueError) as failed:
        read_json(content)
    assert str(failed.value) == message
