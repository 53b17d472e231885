"""Bodies that their publisher has compressed, as the property `content-encoding` says."""

from __future__ import annotations

import zlib
from typing import Any, Final

import pyarrow as pa

# A body that grows beyond this when it is decompressed is not looked into.
MAX_OCTETS: Final = 64 << 20
_CODECS: Final = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd", "br": "brotli", "bzip2": "bz2", "lz4": "lz4"}
_PLAIN: Final = ("", "identity", "utf-8", "utf8")


def decompress(octets: bytes, encoding: str | None) -> bytes | None:
    """What was compressed; None for an encoding that is not known, octets that are none of it, and too much of them."""
    name = (encoding or "").lower()
    if name in _PLAIN:
        return octets
    try:
        if name == "deflate":
            found = zlib.decompressobj()
            content = found.decompress(octets, MAX_OCTETS + 1)
            return content if found.eof and len(content) <= MAX_OCTETS else None
        if name not in _CODECS:
            return None
        with pa.CompressedInputStream(pa.BufferReader(octets), _CODECS[name]) as stream:
            content = stream.read(MAX_OCTETS + 1)
    except (OSError, ValueError, zlib.error):
        return None
    return content if len(content) <= MAX_OCTETS else None


def compress(content: bytes, encoding: str | None) -> bytes:
    """The octets that `decompress` makes `content` of, for an encoding that it knows."""
    name = (encoding or "").lower()
    if name in _PLAIN:
        return content
    if name == "deflate":
        return zlib.compress(content)
    sink: Any = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODECS[name]) as stream:
        stream.write(content)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets
