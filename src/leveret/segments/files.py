"""Where segments are kept: a directory of this machine, or any place that fsspec has a file system for."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import fsspec
from fsspec.core import url_to_fs

from leveret.segments.errors import SegmentError, SegmentMissing, masked

Options = Mapping[str, Any]
_PIECE: Final = 1 << 20
_LOCAL: Final = "file://"


def local_path(url: str) -> str | None:
    """The path of a local file or directory, None for what is elsewhere."""
    if url.startswith(_LOCAL):
        return url[len(_LOCAL) :]
    return None if "://" in url or "::" in url else url


def join(directory: str, name: str) -> str:
    """The URL of a file in a directory; a name that is a whole URL or path stays what it is."""
    if "://" in name or os.path.isabs(name):
        return name
    return f"{directory.rstrip('/')}/{name}" if directory else name


def open_file(url: str, options: Options | None = None) -> BinaryIO:
    """The file, to be read. SegmentMissing where there is none, or it cannot be reached."""
    path = local_path(url)
    try:
        if path is not None:
            return open(path, "rb")
        filesystem, place = url_to_fs(url, **(options or {}))
        opened: BinaryIO = filesystem.open(place, "rb")
        return opened
    except FileNotFoundError as error:
        raise SegmentMissing(url, "there is no such file") from error
    except Exception as error:  # of whatever kind the file system raises
        raise SegmentMissing(url, f"it cannot be opened: {reason_of(error)}") from error


def size_of(url: str, options: Options | None = None) -> int:
    """Octets of the file. SegmentMissing as `open_file`."""
    path = local_path(url)
    try:
        if path is not None:
            return os.stat(path).st_size
        filesystem, place = url_to_fs(url, **(options or {}))
        return int(filesystem.size(place))
    except FileNotFoundError as error:
        raise SegmentMissing(url, "there is no such file") from error
    except Exception as error:
        raise SegmentMissing(url, f"it cannot be reached: {reason_of(error)}") from error


def checksum(url: str, options: Options | None = None) -> int:
    """CRC-32 of the file. SegmentMissing as `open_file`."""
    found = 0
    with open_file(url, options) as file:
        try:
            while piece := file.read(_PIECE):
                found = zlib.crc32(piece, found)
        except Exception as error:
            raise SegmentMissing(url, f"it cannot be read: {reason_of(error)}") from error
    return found


def put(source: str, url: str, options: Options | None = None) -> None:
    """Copy a local file to a URL that is not local, and see that all of it is there. SegmentError where it fails."""
    try:
        filesystem, place = url_to_fs(url, **(options or {}))
        filesystem.makedirs(filesystem._parent(place), exist_ok=True)
        filesystem.put_file(source, place)
        filesystem.invalidate_cache()
        there = int(filesystem.size(place))
    except Exception as error:
        raise SegmentError(url, f"it cannot be written: {reason_of(error)}") from error
    if there != os.stat(source).st_size:
        raise SegmentError(url, f"it cannot be written: {there} octets arrived of {os.stat(source).st_size}")


def remove(url: str, options: Options | None = None) -> bool:
    """Delete a file; False where it was gone. SegmentError where it cannot be deleted."""
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
        raise SegmentError(url, f"it cannot be deleted: {reason_of(error)}") from error
    return True


def names_in(directory: str, options: Options | None = None) -> list[str]:
    """The names of the files in a directory; none where there is no such directory. SegmentError where it cannot be
    listed."""
    path = local_path(directory)
    try:
        if path is not None:
            return sorted(entry.name for entry in os.scandir(path) if entry.is_file())
        filesystem, place = url_to_fs(directory, **(options or {}))
        filesystem.invalidate_cache()
        return sorted(str(item["name"]).rsplit("/", 1)[-1] for item in filesystem.ls(place, detail=True)
                      if item["type"] == "file")
    except FileNotFoundError:
        return []
    except Exception as error:
        raise SegmentError(directory, f"it cannot be listed: {reason_of(error)}") from error


def names_below(directory: str, options: Options | None = None) -> list[str]:
    """The files in a directory and those below it, by their paths from there; none where there is no such directory.
    SegmentError where it cannot be listed."""
    path = local_path(directory)
    try:
        if path is not None:
            return sorted(os.path.relpath(os.path.join(base, name), path)
                          for base, _, names in os.walk(path) for name in names)
        filesystem, place = url_to_fs(directory, **(options or {}))
        filesystem.invalidate_cache()
        start = place.rstrip("/") + "/"
        return sorted(str(found).lstrip("/").removeprefix(start.lstrip("/")) for found in filesystem.find(place))
    except FileNotFoundError:
        return []
    except Exception as error:
        raise SegmentError(directory, f"it cannot be listed: {reason_of(error)}") from error


def check_directory(directory: str, options: Options | None = None) -> None:
    """ValueError where no file system is known for the URL, or what it needs is not installed."""
    if local_path(directory) is not None:
        return
    protocol = directory.split("://", 1)[0].split("::", 1)[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except (ValueError, ImportError) as error:
        raise ValueError(f"{masked(directory)}: {error}") from error


def reason_of(error: Exception) -> str:
    """What an error of a file system says. Such texts may have the URL in them."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return masked(str(text))
