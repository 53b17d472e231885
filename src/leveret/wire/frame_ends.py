"""The ends of frames in a stream, found without decoding the frames."""

from __future__ import annotations


def find_frames(data: bytes, size_at: int, header_size: int, overhead: int) -> tuple[int, int, int]:
    """Find the complete frames at the start of data.

    Args:
        data: The data, which begins with a frame.
        size_at: The position of the size in the header of a frame, in 4 bytes.
        header_size: The size of the header, and the minimum of a frame.
        overhead: What the size does not count.

    Returns:
        The position of the last complete frame, that of its end, and the bytes that the frame after it needs. Both
        positions are 0 without a complete frame.
    """
    size = len(data)
    pos = last = 0
    while size - pos >= header_size:
        at = pos + size_at
        length = overhead + (data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3])
        if length < header_size:
            length = header_size
        if length > size - pos:
            return last, pos, length
        last = pos
        pos += length
    return last, pos, header_size
