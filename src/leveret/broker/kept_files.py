"""Files without a definition that the broker keeps, because their definitions may have been lost.

At start, the broker removes files of segments and uploads that no definition names: incomplete work before a crash. After
damaged parts of the log were dropped, or its missing files accepted, such a file may be the only copy of messages. The
store then marks each place (metadata of kind `salvaged`); the next listing of the place records its files without a
definition (kind `kept-file`), and no start removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from leveret.broker import metadata
from leveret.broker.log import Log, Recovery

logger = logging.getLogger("leveret.storage")

SEGMENTS: Final = "segments"
STAGED: Final = "staged"
PLACES: Final = (SEGMENTS, STAGED)
# Maximum number of names in one log line.
_SHOWN: Final = 5


class KeptFiles:
    """The kept files of each place."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._salvaged: set[str] = set()
        self._kept: dict[str, set[str]] = {place: set() for place in PLACES}

    def recover(self, recovery: Recovery) -> None:
        for kind, key in recovery.metadata:
            if kind == metadata.SALVAGED:
                self._salvaged.add(key)
            elif kind == metadata.KEPT_FILE:
                place, name = metadata.split_key(key)
                self._kept[place].add(name)

    def is_salvaged(self, place: str) -> bool:
        """Return whether the files of a place have not been listed since definitions were lost."""
        return place in self._salvaged

    def removable(self, place: str, found: Iterable[str], named: Collection[str]) -> list[str]:
        """Return the files that may be removed.

        Args:
            place: One of `PLACES`.
            found: All existing files.
            named: The files named by definitions.
        """
        others = {name for name in found if name not in named}
        kept = self._kept[place]
        for name in kept - others:
            self._log.put(metadata.KEPT_FILE, metadata.make_key(place, name), None)
        kept &= others
        if place in self._salvaged:
            self._salvaged.remove(place)
            self._log.put(metadata.SALVAGED, place, None)
            for name in others - kept:
                self._log.put(metadata.KEPT_FILE, metadata.make_key(place, name), metadata.pack({}))
            kept |= others
        if kept:
            shown = sorted(kept)
            more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
            logger.warning(
                "%d files of %s have no definition and are kept, because damaged or missing parts of the log may"
                " have named them: %s%s; copy what you need, then delete them",
                len(shown),
                place,
                ", ".join(shown[:_SHOWN]),
                more,
            )
        return sorted(others - kept)
