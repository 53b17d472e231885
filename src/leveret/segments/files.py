"""Access to segment files: local directories, and any URL that fsspec supports."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import fsspec
from fsspec.core import url_to_fs

from leveret.segments.errors import SegmentError, SegmentMissing, masked

Options = Mapping[str, Any]
_CHUNK_BYTES: Final = 1 << 20
_LOCAL: Final = "file://"


def local_path(url: str) -> str | None:
    """Return the path of a local file or directory; None for other URLs."""
    if url.startswith(_LOCAL):
        return url[len(_LOCAL) :]
    return None if "://" in url or "::" in url else url


def join(directory: str, name: str) -> str:
    """Return the URL of a file in a directory; a name that is a URL or an absolute path is returned unchanged."""
    if "://" in name or os.path.isabs(name):
        return name
    return f"{directory.rstrip('/')}/{name}" if directory else name


def open_file(url: str, options: Options | None = None) -> BinaryIO:
    """Open a file for reading. Raises SegmentMissing if it does not exist or cannot be reached."""
    path = local_path(url)
    try:
        if path is not None:
            return open(path, "rb")
        filesystem, place = url_to_fs(url, **(options or {}))
        opened: BinaryIO = filesystem.open(place, "rb")
        return opened
    except FileNotFoundError as error:
        raise SegmentMissing(url, "the file does not exist") from error
    except Exception as error:  # file systems raise exceptions of any kind
        raise SegmentMissing(url, f"it cannot be opened: {error_text(error)}") from error


def size_of(url: str, options: Options | None = None) -> int:
    """Return the size of a file in bytes. Raises SegmentMissing like `open_file`."""
    path = local_path(url)
    try:
        if path is not None:
            return os.stat(path).st_size
        filesystem, place = url_to_fs(url, **(options or {}))
        return int(filesystem.size(place))
    except FileNotFoundError as error:
        raise SegmentMissing(url, "the file does not exist") from error
    except Exception as error:
        raise SegmentMissing(url, f"it cannot be reached: {error_text(error)}") from error


def checksum(url: str, options: Options | None = None) -> int:
    """Return the CRC-32 of a file. Raises SegmentMissing like `open_file`."""
    found = 0
    with open_file(url, options) as file:
        try:
            while piece := file.read(_CHUNK_BYTES):
                found = zlib.crc32(piece, found)
        except Exception as error:
            raise SegmentMissing(url, f"it cannot be read: {error_text(error)}") from error
    return found


def upload(source: str, url: str, options: Options | None = None) -> None:
    """Copy a local file to a remote URL and verify its size there. Raises SegmentError if that fails."""
    try:
        filesystem, place = url_to_fs(url, **(options or {}))
        filesystem.makedirs(filesystem._parent(place), exist_ok=True)
        filesystem.put_file(source, place)
        filesystem.invalidate_cache()
        size = int(filesystem.size(place))
    except Exception as error:
        raise SegmentError(url, f"it cannot be written: {error_text(error)}") from error
    if size != os.stat(source).st_size:
        raise SegmentError(url, f"it cannot be written: {size} of {os.stat(source).st_size} bytes arrived")


def remove(url: str, options: Options | None = None) -> bool:
    """Delete a file; returns False if it does not exist. Raises SegmentError if it cannot be deleted."""
    path = local_path(url)
    try:
        if path is not None:
            os.unlink(path)
        else:
            filesystem, place = url_to_fs(url, **(options or {}))
            filesystem.rm_file(place)
    except FileNotFoundError:
        return False
    except Exception as error:
        raise SegmentError(url, f"it cannot be deleted: {error_text(error)}") from error
    return True


def list_names(directory: str, options: Options | None = None) -> list[str]:
    """Return the names of the files in a directory; empty if it does not exist.

    Raises:
        SegmentError: The directory cannot be listed.
    """
    path = local_path(directory)
    try:
        if path is not None:
            return sorted(entry.name for entry in os.scandir(path) if entry.is_file())
        filesystem, place = url_to_fs(directory, **(options or {}))
        filesystem.invalidate_cache()
        return sorted(
            str(item["name"]).rsplit("/", 1)[-1] for item in filesystem.ls(place, detail=True) if item["type"] == "file"
        )
    except FileNotFoundError:
        return []
    except Exception as error:
        raise SegmentError(directory, f"it cannot be listed: {error_text(error)}") from error


def list_tree(directory: str, options: Options | None = None) -> list[str]:
    """Return the files below a directory, as paths relative to it; empty if it does not exist.

    Raises:
        SegmentError: The directory cannot be listed.
    """
    path = local_path(directory)
    try:
        if path is not None:
            return sorted(
                os.path.relpath(os.path.join(base, name), path) for base, _, names in os.walk(path) for name in names
            )
        filesystem, place = url_to_fs(directory, **(options or {}))
        filesystem.invalidate_cache()
        start = place.rstrip("/") + "/"
        return sorted(str(found).lstrip("/").removeprefix(start.lstrip("/")) for found in filesystem.find(place))
    except FileNotFoundError:
        return []
    except Exception as error:
        raise SegmentError(directory, f"it cannot be listed: {error_text(error)}") from error


def check_directory(directory: str, options: Options | None = None) -> None:
    """Raise ValueError if no file system supports the URL, or one of its dependencies is not installed."""
    if local_path(directory) is not None:
        return
    protocol = directory.split("://", 1)[0].split("::", 1)[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except (ValueError, ImportError) as error:
        raise ValueError(f"{masked(directory)}: {error}") from error


def error_text(error: Exception) -> str:
    """Return the text of a file system's error, without credentials."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return masked(str(text))
