"""Message annotations for 0-9-1 headers that the broker or an outcome has added to an entry."""

from __future__ import annotations

from typing import Final

from leveret.protocols.convert.values import text_of, typed
from leveret.wire.amqp0.values import FieldTable
from leveret.wire.amqp10.decode import section_pairs
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.values import Pairs, Symbol

# Receivers must understand every annotation whose name does not begin with x-opt-.
DEATHS: Final = "x-opt-deaths"
PREFIX: Final = "x-opt-"
RENAMED: Final = {"x-death": DEATHS}
# Headers whose values are in the header section.
OMITTED: Final = ("x-delivery-count",)
_SECTION: Final = b"\x00\x53\x72"


def annotation_of(header: str) -> str:
    """Return the name of the annotation for a 0-9-1 header."""
    found = RENAMED.get(header)
    if found is not None:
        return found
    return text_of(header) if header.startswith("x-") else PREFIX + text_of(header)


def merged_annotations(section: bytes, headers: FieldTable) -> bytes:
    """Return the section with an annotation set for each header, or removed if the header's value is None."""
    pairs = _pairs(section)
    changes = {annotation_of(name): typed(value) for name, value in headers.items() if name not in OMITTED}
    kept: Pairs = [(key, value) for key, value in pairs if not (isinstance(key, str) and str(key) in changes)]
    kept += [(Symbol(_ascii(name)), value) for name, value in changes.items() if value is not None]
    return encode_annotations(kept)


def merged(data: bytes, headers: FieldTable) -> bytes:
    """Return the sections after the delivery annotations, with these headers set in the message annotations."""
    sections = split(data)
    annotations = b""
    if sections.message_annotations >= 0:
        annotations = data[sections.message_annotations : sections.message_annotations_end]
    return merged_annotations(annotations, headers) + data[sections.bare :]


def encode_annotations(pairs: Pairs) -> bytes:
    """Return the encoded section; empty if there are no annotations."""
    return _SECTION + encode_pairs(pairs) if pairs else b""


def _pairs(section: bytes) -> Pairs:
    return section_pairs(section, 0, len(section)) if section else []


def _ascii(name: str) -> str:
    """Escape the non-ASCII characters of a name, which symbols cannot contain."""
    return name.encode("ascii", "backslashreplace").decode("ascii")


def symbol(name: str) -> Symbol:
    return Symbol(_ascii(name))
