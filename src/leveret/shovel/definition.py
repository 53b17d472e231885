"""Definitions of shovels, with the names and rules of RabbitMQ's parameters of the component `shovel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

from leveret.broker.errors import PreconditionFailed
from leveret.client.engine.amqp10.addresses import Addresses
from leveret.client.engine.amqp10.properties import Additions, encode_sections
from leveret.client.errors import InvalidMessage, InvalidUrl
from leveret.client.properties import NAMES, Properties, encode_properties
from leveret.shovel.uris import AMQP091, AMQP10, PROTOCOLS, read_uri

Value: TypeAlias = Any

ON_CONFIRM: Final = "on-confirm"
ON_PUBLISH: Final = "on-publish"
NO_ACK: Final = "no-ack"
ACK_MODES: Final = (ON_CONFIRM, ON_PUBLISH, NO_ACK)
NEVER: Final = "never"
QUEUE_LENGTH: Final = "queue-length"
DEFAULT_PREFETCH: Final = 1000
DEFAULT_RECONNECT_DELAY: Final = 5.0
MAX_PREFETCH: Final = 65535
MAX_URIS: Final = 64
# Seconds. 0 means that the shovel does not start again.
MIN_RECONNECT_DELAY: Final = 1
MAX_RECONNECT_DELAY: Final = 86400
MAX_COUNT: Final = 2**63 - 1
# A key that RabbitMQ does not have.
ADD_ORIGIN_HEADERS: Final = "dest-add-origin-headers"

# RabbitMQ's older names.
_SYNONYMS: Final = {
    "prefetch-count": "src-prefetch-count",
    "delete-after": "src-delete-after",
    "add-forward-headers": "dest-add-forward-headers",
    "add-timestamp-header": "dest-add-timestamp-header",
    "publish-properties": "dest-publish-properties",
}
_OF_PROTOCOL: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("src", AMQP091): (
        "src-queue",
        "src-queue-args",
        "src-exchange",
        "src-exchange-key",
        "src-consumer-args",
        "src-predeclared",
    ),
    ("src", AMQP10): ("src-address",),
    ("dest", AMQP091): (
        "dest-queue",
        "dest-queue-args",
        "dest-exchange",
        "dest-exchange-key",
        "dest-publish-properties",
        "dest-predeclared",
    ),
    ("dest", AMQP10): ("dest-address", "dest-application-properties", "dest-message-annotations", "dest-properties"),
}
_COMMON: Final = (
    "src-uri",
    "src-protocol",
    "src-prefetch-count",
    "src-delete-after",
    "dest-uri",
    "dest-protocol",
    "dest-add-forward-headers",
    "dest-add-timestamp-header",
    ADD_ORIGIN_HEADERS,
    "ack-mode",
    "reconnect-delay",
)


# The properties of AMQP 1.0 (messaging section 3.2.4), and the types of their values here.
_FIELDS: Final[dict[str, type]] = {
    **dict.fromkeys(("message_id", "user_id", "to", "subject", "reply_to", "correlation_id"), str),
    **dict.fromkeys(("content_type", "content_encoding", "group_id", "reply_to_group_id"), str),
    **dict.fromkeys(("absolute_expiry_time", "creation_time", "group_sequence"), int),
}


@dataclass(frozen=True, slots=True)
class End:
    """The source or the destination of a shovel.

    Attributes:
        uris: URIs to try in order.
        protocol: `AMQP091` or `AMQP10`.
        queue: Name of the queue; "" if there is an exchange or an address.
        queue_arguments: Arguments with which the queue is declared if it does not exist.
        predeclared: Whether the queue must exist.
        exchange: Name of the exchange; None for none.
        exchange_key: Binding key at the source, routing key at the destination; None for none.
        address: Address over AMQP 1.0.
    """

    uris: tuple[str, ...]
    protocol: str
    queue: str
    queue_arguments: Mapping[str, Value]
    predeclared: bool
    exchange: str | None
    exchange_key: str | None
    address: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A shovel.

    Attributes:
        delete_after: `NEVER`, `QUEUE_LENGTH`, or the number of messages after which the shovel ends.
        reconnect_delay: Seconds before the shovel starts again after a failure; 0 if it does not.
        origin_headers: Whether to add headers with the exchange and the routing key of each message.
        publish_properties: Properties that replace those of each message.
        additions: What replaces parts of each message over AMQP 1.0.
    """

    source: End
    destination: End
    prefetch: int
    delete_after: int | str
    consumer_arguments: Mapping[str, Value]
    ack_mode: str
    reconnect_delay: float
    forward_headers: bool
    timestamp_header: bool
    origin_headers: bool
    publish_properties: Mapping[str, Value]
    additions: Additions


def read_definition(name: str, value: Value, is_stored: bool = False) -> Definition:
    """Return the definition in the value of a parameter.

    Args:
        name: The name of the shovel.
        value: The value of the parameter.
        is_stored: Whether an earlier version may have stored it, which had no minimum of `reconnect-delay`.

    Raises:
        PreconditionFailed: The definition is invalid; the message names the key.
    """
    return _Reader(f"shovel '{name}'", value, lambda key: key, 0 if is_stored else MIN_RECONNECT_DELAY).read()


def read_settings(name: str, settings: Mapping[str, Value]) -> Definition:
    """Return the definition in settings of the configuration, which are the keys of parameters with underscores.

    Args:
        name: The name of the shovel.
        settings: The settings that are set.

    Raises:
        PreconditionFailed: The definition is invalid; the message names the setting.
    """
    value = {key.replace("_", "-"): item for key, item in settings.items()}
    return _Reader(f"static shovel '{name}'", value, lambda key: f"shovels.{name}.{key.replace('-', '_')}").read()


class _Reader:
    """Reads one definition.

    Args:
        shovel: The shovel in messages.
        value: The definition.
        spell: Returns a key as messages name it.
        min_delay: The minimum of `reconnect-delay` except 0. A lower one counts as `MIN_RECONNECT_DELAY`.
    """

    def __init__(
        self, shovel: str, value: Value, spell: Callable[[str], str], min_delay: float = MIN_RECONNECT_DELAY
    ) -> None:
        self.shovel = shovel
        self.spell = spell
        self.min_delay = min_delay
        if not isinstance(value, dict):
            raise PreconditionFailed(f"{shovel} is not an object")
        self.values: dict[str, Value] = {}
        for key, item in value.items():
            known = str(_SYNONYMS.get(key, key))
            if known in self.values:
                raise PreconditionFailed(f"{shovel}: '{key}' and '{known}' are the same setting; expected one")
            self.values[known] = item

    def read(self) -> Definition:
        source, destination = self._protocol("src-protocol"), self._protocol("dest-protocol")
        allowed = (*_COMMON, *_OF_PROTOCOL["src", source], *_OF_PROTOCOL["dest", destination])
        for key in self.values:
            if key not in allowed:
                raise PreconditionFailed(
                    f"{self.shovel}: '{self.spell(key)}' is unknown with src-protocol '{source}' and dest-protocol"
                    f" '{destination}'; expected one of {', '.join(map(self.spell, allowed))}"
                )
        delete_after = self._delete_after()
        if source == AMQP10 and delete_after == QUEUE_LENGTH:
            self._fail("src-delete-after", delete_after, f"'{NEVER}' or a number, because AMQP 1.0 has no queue length")
        ack_mode = self._choice("ack-mode", ACK_MODES, ON_CONFIRM)
        if ack_mode == NO_ACK and delete_after not in (NEVER, QUEUE_LENGTH):
            self._fail("src-delete-after", delete_after, f"'{NEVER}' or '{QUEUE_LENGTH}' with ack-mode '{NO_ACK}'")
        return Definition(
            self._end("src", source, needs_node=True),
            self._end("dest", destination, needs_node=False),
            self._integer("src-prefetch-count", 1, MAX_PREFETCH, DEFAULT_PREFETCH),
            delete_after,
            self._table("src-consumer-args"),
            ack_mode,
            self._delay(),
            self._boolean("dest-add-forward-headers"),
            self._boolean("dest-add-timestamp-header"),
            self._boolean(ADD_ORIGIN_HEADERS),
            self._properties(),
            self._additions(),
        )

    def _end(self, side: str, protocol: str, needs_node: bool) -> End:
        uris = self._uris(f"{side}-uri", protocol)
        queue = self._text(f"{side}-queue")
        exchange = self._text(f"{side}-exchange")
        key = self._text(f"{side}-exchange-key")
        address = self._text(f"{side}-address")
        if protocol == AMQP10:
            if not address:
                self._fail(f"{side}-address", address, "an address")
        elif queue is not None and exchange is not None:
            raise PreconditionFailed(
                f"{self.shovel}: '{self.spell(f'{side}-queue')}' and '{self.spell(f'{side}-exchange')}' are both given;"
                " expected one of them"
            )
        elif needs_node and not queue and not exchange:
            raise PreconditionFailed(
                f"{self.shovel}: expected '{self.spell(f'{side}-queue')}' or '{self.spell(f'{side}-exchange')}'"
            )
        return End(
            uris,
            protocol,
            queue or "",
            self._table(f"{side}-queue-args"),
            self._boolean(f"{side}-predeclared"),
            exchange,
            key,
            address or "",
        )

    def _protocol(self, key: str) -> str:
        return self._choice(key, tuple(PROTOCOLS), AMQP091)

    def _uris(self, key: str, protocol: str) -> tuple[str, ...]:
        value = self.values.get(key)
        uris = [value] if isinstance(value, str) else value
        if not isinstance(uris, list) or not 1 <= len(uris) <= MAX_URIS:
            raise PreconditionFailed(
                f"{self.shovel}: '{self.spell(key)}' is missing or invalid; expected a URI or a list of 1 to {MAX_URIS}"
            )
        for uri in uris:
            try:
                read_uri(uri, protocol, "")
            except InvalidUrl as error:
                raise PreconditionFailed(f"{self.shovel}: '{self.spell(key)}': {error}") from None
        return tuple(uris)

    def _delete_after(self) -> int | str:
        value = self.values.get("src-delete-after", NEVER)
        if value not in (NEVER, QUEUE_LENGTH) and not _is_integer(value, 0, MAX_COUNT):
            self._fail("src-delete-after", value, f"'{NEVER}', '{QUEUE_LENGTH}' or a number of messages")
        found: int | str = value
        return found

    def _delay(self) -> float:
        value = self.values.get("reconnect-delay", DEFAULT_RECONNECT_DELAY)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or (value != 0 and not self.min_delay <= value <= MAX_RECONNECT_DELAY):
            expected = f"seconds from {MIN_RECONNECT_DELAY} to {MAX_RECONNECT_DELAY}, or 0 for no restart"
            self._fail("reconnect-delay", value, expected)
        return float(max(value, MIN_RECONNECT_DELAY)) if value else 0.0

    def _properties(self) -> Mapping[str, Value]:
        given = self._table("dest-publish-properties")
        for key in given:
            if key not in NAMES:
                self._fail("dest-publish-properties", key, f"properties among {', '.join(NAMES)}")
        try:
            encode_properties(Properties(**given))
        except InvalidMessage as error:
            name = self.spell("dest-publish-properties")
            raise PreconditionFailed(f"{self.shovel}: '{name}': {error}") from None
        return given

    def _additions(self) -> Additions:
        found = Additions(
            self._simple_values("dest-message-annotations"), self._simple_values("dest-application-properties"), {}
        )
        self._check_additions("dest-message-annotations", found._replace(application={}))
        self._check_additions("dest-application-properties", found._replace(annotations={}))
        fields: dict[str, Value] = {}
        given: Mapping[str, Value] = self._simple_values("dest-properties")
        for key, value in given.items():
            name = key.replace("-", "_")
            if name not in _FIELDS:
                self._fail("dest-properties", key, f"properties among {', '.join(_FIELDS)}")
            if type(value) is not _FIELDS[name]:
                self._fail("dest-properties", f"{key}: {value}", "text, or a number for times and the group sequence")
            fields[name] = str(value).encode("utf-8", "surrogateescape") if name == "user_id" else value
        self._check_additions("dest-properties", Additions({}, {}, fields))
        return found._replace(fields=fields)

    def _check_additions(self, key: str, additions: Additions) -> None:
        try:
            encode_sections(Properties(), Addresses("plain"), additions)
        except InvalidMessage as error:
            raise PreconditionFailed(f"{self.shovel}: '{self.spell(key)}': {error}") from None

    def _simple_values(self, key: str) -> Mapping[str, Value]:
        table = self._table(key)
        for name, value in table.items():
            if not isinstance(value, (str, bool, int, float)):
                self._fail(key, f"{name}: {value}", "text, numbers, true and false as values")
        return table

    def _text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self._fail(key, value, "a string")
        found: str | None = value
        return found

    def _table(self, key: str) -> Mapping[str, Value]:
        value = self.values.get(key, {})
        # An empty object of PHP's and Erlang's JSON encoders.
        if value == []:
            value = {}
        if not isinstance(value, dict):
            self._fail(key, value, "an object")
        table: Mapping[str, Value] = value
        return table

    def _boolean(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            self._fail(key, value, "true or false")
        return bool(value)

    def _integer(self, key: str, low: int, high: int, default: int) -> int:
        value = self.values.get(key, default)
        if not _is_integer(value, low, high):
            self._fail(key, value, f"an integer from {low} to {high}")
        return int(value)

    def _choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.values.get(key, default)
        if value not in choices:
            self._fail(key, value, f"one of {', '.join(choices)}")
        return str(value)

    def _fail(self, key: str, value: Value, expected: str) -> NoReturn:
        raise PreconditionFailed(f"{self.shovel}: '{self.spell(key)}' is {str(value)[:100]!r}; expected {expected}")


def _is_integer(value: Value, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
