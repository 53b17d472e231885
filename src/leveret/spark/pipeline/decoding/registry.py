"""The formats of bodies by their names in `decode.format`. A new format is one file and one line here."""

from __future__ import annotations

from typing import Final

from leveret.spark.pipeline.decoding import avro, json_bodies, protobuf

# Bodies are not decoded.
RAW: Final = "raw"

FORMATS: Final = {body_format.name: body_format for body_format in (json_bodies.FORMAT, avro.FORMAT, protobuf.FORMAT)}

FORMAT_NAMES: Final = tuple(sorted([RAW, *FORMATS]))
