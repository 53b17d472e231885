"""Bodies that the publisher compressed, according to the property `content-encoding`."""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

# Maximum decompressed size, in bytes, of a body to inspect.
MAX_DECOMPRESSED_BYTES: Final = 64 << 20
_CODECS: Final = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd", "br": "brotli", "bzip2": "bz2", "lz4": "lz4"}
_PLAIN: Final = ("", "identity", "utf-8", "utf8")


def decompress(data: bytes, encoding: str | None) -> bytes | None:
    """Decompress a body; None if the encoding is unknown, the data is invalid, or the result is too large."""
    name = (encoding or "").lower()
    if name in _PLAIN:
        return data
    try:
        if name == "deflate":
            found = zlib.decompressobj()
            content = found.decompress(data, MAX_DECOMPRESSED_BYTES + 1)
            return content if found.eof and len(content) <= MAX_DECOMPRESSED_BYTES else None
        if name not in _CODECS:
            return None
        with pa.CompressedInputStream(pa.BufferReader(data), _CODECS[name]) as stream:
            content = stream.read(MAX_DECOMPRESSED_BYTES + 1)
    except (OSError, ValueError, zlib.error):
        return None
    return content if len(content) <= MAX_DECOMPRESSED_BYTES else None


def compress(content: bytes, encoding: str | None) -> bytes:
    """Compress content with an encoding that `decompress` supports."""
    name = (encoding or "").lower()
    if name in _PLAIN:
        return content
    if name == "deflate":
        return zlib.compress(content)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODECS[name]) as stream:
        stream.write(content)
    data: bytes = sink.getvalue().to_pybytes()
    return data
