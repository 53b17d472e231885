"""A codec of AMQP 0-9 for tests, from the table in `methods09.txt`, independent of the broker's.

Names of methods are "queue.declare", those of fields have underscores. `encode_method` accepts any value of the field's
type, valid or not.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).resolve().parent / "methods09.txt"
_NUMBERS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q", "timestamp": ">Q"}
INLINE, REFERENCE = 0, 1


class MethodSpec(NamedTuple):
    """`name` is "queue.declare"; `fields` are pairs of name and type."""

    name: str
    class_id: int
    method_id: int
    content: bool
    fields: tuple[tuple[str, str], ...]


class ClassSpec(NamedTuple):
    name: str
    class_id: int
    properties: tuple[tuple[str, str], ...]


class Body(NamedTuple):
    """`message.transfer.body`: `kind` INLINE with the bytes, or REFERENCE with the name of one."""

    kind: int
    data: bytes


class Method:
    """A method as read; its fields are attributes."""

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(f"{self.name} has no field {name}") from None

    def __repr__(self) -> str:
        return f"{self.name} {self.fields}"


def _fields(words: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = [word.split(":") for word in words]
    return tuple((name.replace("-", "_"), kind) for name, kind in pairs)


def _read() -> tuple[dict[str, MethodSpec], dict[str, ClassSpec]]:
    methods: dict[str, MethodSpec] = {}
    classes: dict[str, ClassSpec] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        kind, name, index, *words = line.split(" ")
        if kind == "class":
            current = ClassSpec(name, int(index), _fields(words))
            classes[name] = current
            continue
        content = words[:1] == ["content"]
        full = f"{current.name}.{name}"
        methods[full] = MethodSpec(full, current.class_id, int(index), content, _fields(words[content:]))
    return methods, classes


METHODS, CLASSES = _read()
BY_INDEX = {(spec.class_id, spec.method_id): spec for spec in METHODS.values()}
CLASS_BY_INDEX = {spec.class_id: spec for spec in CLASSES.values()}


def bytes_of(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def encode_value(kind: str, value: Any) -> bytes:
    """Encode a value of any type but bit."""
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], value or 0)
    if kind == "shortstr":
        data = bytes_of(value or "")
        return struct.pack(">B", len(data)) + data
    if kind == "longstr":
        data = bytes_of(value or "")
        return struct.pack(">I", len(data)) + data
    if kind == "table":
        return encode_table(value or {})
    assert kind == "content", kind
    body = value or Body(INLINE, b"")
    return struct.pack(">BI", body.kind, len(body.data)) + body.data


def encode_table(table: dict[str, Any]) -> bytes:
    """Encode a field table of strings, integers, tables and bytes (as strings)."""
    data = b""
    for name, value in table.items():
        data += encode_value("shortstr", name)
        if isinstance(value, dict):
            data += b"F" + encode_table(value)
        elif isinstance(value, int):
            data += b"I" + struct.pack(">i", value)
        else:
            data += b"S" + encode_value("longstr", value)
    return struct.pack(">I", len(data)) + data


def encode_method(name: str, fields: dict[str, Any]) -> bytes:
    """Encode the payload of a method frame. Omitted fields are 0, empty or false."""
    spec = METHODS[name]
    known = {field for field, _ in spec.fields}
    assert fields.keys() <= known, f"{name} has no field {', '.join(fields.keys() - known)}"
    data = bytearray(struct.pack(">HH", spec.class_id, spec.method_id))
    bits = 0
    for field, kind in spec.fields:
        value = fields.get(field)
        if kind != "bit":
            bits = 0
            data += encode_value(kind, value)
            continue
        if bits % 8 == 0:
            data.append(0)
        data[-1] |= bool(value) << bits % 8
        bits += 1
    return bytes(data)


def encode_header(kind: str, size: int, properties: dict[str, Any], weight: int = 0) -> bytes:
    """Encode the payload of a content header frame of this class."""
    spec = CLASSES[kind]
    assert properties.keys() <= {name for name, _ in spec.properties}, f"class {kind} has not all of {list(properties)}"
    flags = 0
    data = b""
    for at, (name, type) in enumerate(spec.properties):
        if properties.get(name) is not None:
            flags |= 1 << 15 - at
            data += encode_value(type, properties[name])
    return struct.pack(">HHQH", spec.class_id, weight, size, flags) + data


class Reader:
    """Decodes values from bytes. Raises ValueError if they end too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise ValueError(f"{count} bytes wanted at {self.at} of {self.data!r}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, layout: str = ">I") -> str:
        return self.take(self.number(layout)).decode("utf-8", "surrogateescape")

    def value(self, kind: str) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == "shortstr":
            return self.text(">B")
        if kind == "longstr":
            return self.take(self.number(">I"))
        if kind == "table":
            return self.table()
        assert kind == "content", kind
        return Body(self.number(">B"), self.take(self.number(">I")))

    def table(self) -> dict[str, Any]:
        end = self.number(">I") + self.at
        table = {}
        while self.at < end:
            name = self.text(">B")
            table[name] = self.tagged()
        assert self.at == end, "a field table is longer than it says"
        return table

    def tagged(self) -> Any:
        """Decode a value of a field table in Qpid's or RabbitMQ's dialect."""
        tag = self.take(1)
        if tag == b"S":
            return self.text()
        if tag == b"F":
            return self.table()
        if tag == b"V":
            return None
        if tag == b"t":
            return bool(self.number(">B"))
        if tag == b"A":
            end = self.number(">I") + self.at
            values = []
            while self.at < end:
                values.append(self.tagged())
            return values
        if tag == b"D":
            places = self.number(">B")
            return self.number(">i") / 10**places
        layouts = {b"I": ">i", b"l": ">q", b"T": ">Q", b"L": ">q", b"s": ">h", b"b": ">b", b"d": ">d", b"f": ">f"}
        return self.number(layouts[tag])


def decode_method(payload: bytes) -> Method:
    reader = Reader(payload)
    spec = BY_INDEX[reader.number(">H"), reader.number(">H")]
    fields: dict[str, Any] = {}
    bits = byte = 0
    for field, kind in spec.fields:
        if kind != "bit":
            bits = 0
            fields[field] = reader.value(kind)
            continue
        if bits % 8 == 0:
            byte = reader.number(">B")
        fields[field] = bool(byte >> bits % 8 & 1)
        bits += 1
    assert reader.at == len(payload), f"{spec.name} has bytes behind its last field"
    return Method(spec.name, fields)


class Header(NamedTuple):
    """A content header as read."""

    kind: str
    weight: int
    size: int
    properties: dict[str, Any]


def decode_header(payload: bytes) -> Header:
    reader = Reader(payload)
    spec = CLASS_BY_INDEX[reader.number(">H")]
    weight, size, flags = reader.number(">H"), reader.number(">Q"), reader.number(">H")
    assert not flags & 1, "expected one word of property flags"
    properties = {}
    for at, (name, kind) in enumerate(spec.properties):
        if flags & 1 << 15 - at:
            properties[name] = reader.value(kind)
    assert reader.at == len(payload), "bytes behind the last property"
    return Header(spec.name, weight, size, properties)
