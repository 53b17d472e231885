"""Errors of segments show no credentials."""

from __future__ import annotations

import pytest

from leveret.segments.errors import SegmentMissing


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@bucket/streams/a", "s3://***@bucket/streams/a"),
        ("s3://key:sec/ret@bucket/streams/a", "s3://***@bucket/streams/a"),
        ("s3://key:sec@/ret@bucket/a", "s3://***@bucket/a"),
        ("sftp://user@host/a", "sftp://***@host/a"),
        ("s3://bucket/to:me@home/a", "s3://bucket/to:me@home/a"),
        ("file:///srv/me@home/a", "file:///srv/me@home/a"),
        ("/srv/me@home/a", "/srv/me@home/a"),
    ],
)
def test_credentials_are_hidden(url: str, shown: str) -> None:
    assert str(SegmentMissing(url, "not found")) == f"segment {shown}: not found"
