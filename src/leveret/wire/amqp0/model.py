"""The model of a version of AMQP 0-x: classes, methods, fields and constants, as created by `notation.parse`."""

from __future__ import annotations

from typing import Final

BIT: Final = 0
OCTET: Final = 1
SHORT: Final = 2
LONG: Final = 3
LONGLONG: Final = 4
SHORTSTR: Final = 5
LONGSTR: Final = 6
TIMESTAMP: Final = 7
TABLE: Final = 8
# The domain of `message.transfer.body` in 0-9: an octet (0 inline, 1 reference) and a long string.
CONTENT: Final = 9
# A long string that is content: decoded to `bytes`, not to text.
OCTETS: Final = 10

TYPE_NAMES: Final = (
    "bit",
    "octet",
    "short",
    "long",
    "longlong",
    "shortstr",
    "longstr",
    "timestamp",
    "table",
    "content",
    "octets",
)


class FieldSpec:
    """A field of a method, or a content property.

    Attributes:
        name: the Python name, with underscores instead of hyphens.
        spec_name: the name in the specification. It also differs from `name` if RabbitMQ uses a reserved field.
        reserved: whether the field is ignored on receipt and sent as 0 or empty.
        extension: whether the field has a meaning only in RabbitMQ.
    """

    __slots__ = ("extension", "name", "reserved", "spec_name", "type")

    def __init__(self, name: str, spec_name: str, type: int, reserved: bool, extension: bool) -> None:
        self.name = name
        self.spec_name = spec_name
        self.type = type
        self.reserved = reserved
        self.extension = extension


class MethodSpec:
    """A method.

    Attributes:
        name: the full name, such as "queue.declare".
        key: the class index in the upper 16 bits, and the method index in the lower 16 bits.
        server_receives: whether servers receive it, including RabbitMQ's extensions.
        client_receives: whether clients receive it, including RabbitMQ's extensions.
        spec_receivers: the receivers according to the specification.
        responses: names of the methods that answer it.
    """

    __slots__ = (
        "class_id",
        "client_receives",
        "content",
        "extension",
        "fields",
        "key",
        "method_id",
        "name",
        "responses",
        "server_receives",
        "spec_receivers",
        "sync",
    )

    def __init__(
        self,
        name: str,
        class_id: int,
        method_id: int,
        sync: bool,
        content: bool,
        server_receives: bool,
        client_receives: bool,
        fields: list[FieldSpec],
        responses: list[str],
        spec_receivers: list[str],
        extension: bool,
    ) -> None:
        self.name = name
        self.class_id = class_id
        self.method_id = method_id
        self.key = class_id << 16 | method_id
        self.sync = sync
        self.content = content
        self.server_receives = server_receives
        self.client_receives = client_receives
        self.fields = fields
        self.responses = responses
        self.spec_receivers = spec_receivers
        self.extension = extension


class ClassSpec:
    """A class, with the properties of its contents in the order of their flags."""

    __slots__ = ("class_id", "extension", "methods", "name", "properties", "spec_receivers")

    def __init__(self, name: str, class_id: int, spec_receivers: list[str], extension: bool) -> None:
        self.name = name
        self.class_id = class_id
        self.spec_receivers = spec_receivers
        self.extension = extension
        self.properties: list[FieldSpec] = []
        self.methods: list[MethodSpec] = []


class Constant:
    """A constant of the specification. `error` is "soft" or "hard" for an error code, "" otherwise."""

    __slots__ = ("error", "extension", "name", "value")

    def __init__(self, name: str, value: int, error: str, extension: bool) -> None:
        self.name = name
        self.value = value
        self.error = error
        self.extension = extension


class Version:
    """One version of the protocol.

    Attributes:
        classes: classes by index.
        methods: methods by `MethodSpec.key`.
        by_name: methods by name.
        responses: names of the methods that are only sent as responses.
        requests: the version used if methods are wrapped in requests and responses (see `requests`), or None.
    """

    __slots__ = ("by_name", "classes", "constants", "methods", "name", "requests", "responses")

    def __init__(self, name: str) -> None:
        self.name = name
        self.classes: dict[int, ClassSpec] = {}
        self.methods: dict[int, MethodSpec] = {}
        self.by_name: dict[str, MethodSpec] = {}
        self.constants: dict[str, Constant] = {}
        self.responses: frozenset[str] = frozenset()
        self.requests: Version | None = None

    def copy(self) -> Version:
        """Return another version with the same specifications."""
        other = Version(self.name)
        other.classes = dict(self.classes)
        other.methods = dict(self.methods)
        other.by_name = dict(self.by_name)
        other.constants = self.constants
        other.responses = self.responses
        return other
