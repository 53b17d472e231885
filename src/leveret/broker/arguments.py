"""The arguments of queue.declare, exchange.declare and basic.consume, declared as data.

Each argument is one line with its type, its range or choices, and whether it takes part in the equivalence check of a
redeclaration. Unknown arguments are stored and compared, or refused in strict mode. Binding arguments are not declared
here: the exchange type checks them (`Exchange.check_binding`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import Any, Final, TypeAlias

from leveret.broker.errors import PreconditionFailed
from leveret.broker.values import FieldTable, FieldValue, Frozen, freeze, interval_of, intervals_of

logger = logging.getLogger("leveret.broker")

WHOLE: Final = 0
FLAG: Final = 1
TEXT: Final = 2
ANYTHING: Final = 3
INTERVAL: Final = 4
INTERVALS: Final = 5

DROP_HEAD: Final = 0
REJECT_PUBLISH: Final = 1
REJECT_PUBLISH_DLX: Final = 2
OVERFLOWS: Final = {"drop-head": DROP_HEAD, "reject-publish": REJECT_PUBLISH, "reject-publish-dlx": REJECT_PUBLISH_DLX}

CLASSIC: Final = "classic"
RETRY_DELAYS: Final = "x-retry-delays"
BROWSE: Final = "x-browse"
HISTORY_LENGTH: Final = "x-recent-history-length"
DEFAULT_HISTORY_LENGTH: Final = 20
# A binding gives all of them to a queue in one turn.
MAX_HISTORY_LENGTH: Final = 500
# Arguments of a queue or an exchange that deduplicates. Those of RabbitMQ's plugin are the first, and the last two; the
# names of the header arguments are also names of headers.
DEDUPLICATION: Final = "x-message-deduplication"
DEDUPLICATION_WINDOW: Final = "x-deduplication-window"
DEDUPLICATION_HEADER: Final = "x-deduplication-header"
CACHE_SIZE: Final = "x-cache-size"
CACHE_TTL: Final = "x-cache-ttl"
MAX_CACHE_SIZE: Final = 10_000_000

# Ten years including leap days, in milliseconds: more than any useful TTL, and sums with it stay within 64 bits.
TEN_YEARS: Final = 3653 * 24 * 60 * 60 * 1000
MAX_INT64: Final = (1 << 63) - 1
# Maximum number of names of unknown arguments that are logged in an interval, and the interval in milliseconds.
MAX_NOTED: Final = 1000
NOTED_INTERVAL: Final = 3_600_000
# Maximum number of unknown arguments of one request that are looked at.
MAX_NOTED_AT_ONCE: Final = 100
# Characters of an argument of the kind INTERVALS.
MAX_INTERVALS_TEXT: Final = 255

# Known arguments by name, with values of the declared types (`Argument.parse`).
Validated: TypeAlias = dict[str, Any]


class Argument:
    """The declaration of one argument.

    kind      WHOLE (a number of any integer type from `lowest` to `highest`), FLAG, TEXT (one of `choices` if there are
              any, otherwise at most 255 bytes of UTF-8), INTERVAL (a string such as 7D), INTERVALS (one such as
              5s,30s,5m, each up to ten years) or ANYTHING
    unit      of a number, for error messages
    compared  whether a redeclaration must repeat it
    default   the value that a redeclaration without it implies
    needs     another argument that this one requires, "" for none
    hint      text that the error adds if a queue type does not have the argument, "" for none
    """

    __slots__ = ("choices", "compared", "default", "highest", "hint", "kind", "lowest", "name", "needs", "unit")

    def __init__(
        self,
        name: str,
        kind: int,
        lowest: int = 0,
        highest: int = MAX_INT64,
        unit: str = "",
        choices: tuple[str, ...] = (),
        compared: bool = True,
        default: FieldValue = None,
        needs: str = "",
        hint: str = "",
    ) -> None:
        self.name = name
        self.kind = kind
        self.lowest = lowest
        self.highest = highest
        self.unit = unit
        self.choices = choices
        self.compared = compared
        self.default = default
        self.needs = needs
        self.hint = hint

    def renamed(self, name: str) -> Argument:
        """Return the declaration of a policy key with the same values."""
        return Argument(name, self.kind, self.lowest, self.highest, self.unit, self.choices)

    def expected(self) -> str:
        """Describe the accepted values, for error messages."""
        if self.kind == WHOLE:
            return f"a whole number from {self.lowest} to {self.highest}{f' ({self.unit})' if self.unit else ''}"
        if self.kind == FLAG:
            return "true or false"
        if self.kind == INTERVAL:
            return "a number with one of the units Y, M, D, h, m and s, such as 7D"
        if self.kind == INTERVALS:
            return "delays with one of the units Y, M, D, h, m and s and commas between them, such as 5s,30s,5m"
        return f"one of {', '.join(self.choices)}" if self.choices else "a string of at most 255 bytes"

    def parse(self, value: FieldValue, what: str = "arg") -> Any:
        """Return the value as int, bool or str. Raises PreconditionFailed; `what` is the noun for the argument in it."""
        if self.kind == ANYTHING:
            return value
        if self.kind == WHOLE:
            if isinstance(value, int) and not isinstance(value, bool) and self.lowest <= value <= self.highest:
                return value
        elif self.kind == FLAG:
            if isinstance(value, bool):
                return value
        else:
            text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
            if self.kind == INTERVAL:
                if isinstance(text, str) and interval_of(text) is not None:
                    return text
            elif self.kind == INTERVALS:
                delays = intervals_of(text) if isinstance(text, str) and len(text) <= MAX_INTERVALS_TEXT else None
                if delays is not None and max(delays) <= TEN_YEARS:
                    return text
            elif isinstance(text, str) and (
                text in self.choices if self.choices else len(text.encode("utf-8", "surrogateescape")) <= 255
            ):
                return text
        raise PreconditionFailed(f"invalid {what} '{self.name}': received {_with_type(value)}, expected {self.expected()}")


def shown(value: FieldValue) -> str:
    """Format a value for an error message: strings in quotes, true and false as on the wire, long values truncated."""
    if value is None:
        return "none"
    text = _text(value)
    return f"'{text if len(text) <= 60 else text[:57] + '...'}'"


def _text(value: FieldValue, levels: int = 3) -> str:
    """Format a value without the contents of tables and arrays that are nested deeper than `levels`."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        items = [f"{name}: {_text(item, levels - 1)}" for name, item in value.items()] if levels else ["..."]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join([_text(item, levels - 1) for item in value] if levels else ['...'])}]"
    if value is None:
        return "void"
    return str(value).lower() if isinstance(value, bool) else str(value)


# The AMQP types in error messages by the Python types of values. The first one that fits counts.
_KINDS: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((bool,), "boolean"),
    ((str, bytes, bytearray, memoryview), "string"),
    ((datetime,), "timestamp"),
    ((int,), "integer"),
    ((float,), "float"),
    ((Decimal,), "decimal"),
    ((dict,), "table"),
    ((list, tuple), "array"),
)


def _kind(value: FieldValue) -> str:
    """Return the type of a value in an error message."""
    return next((kind for types, kind in _KINDS if isinstance(value, types)), "void")


def _with_type(value: FieldValue) -> str:
    """Format a refused value as `shown` does, with its type if it is a string that reads like a number or a boolean."""
    text = shown(value)
    is_misleading = isinstance(value, (str, bytes)) and (text[1:-1].lstrip("-").isdigit() or text in ("'true'", "'false'"))
    return f"{text} (string)" if is_misleading else text


def declared_by_name(*arguments: Argument) -> dict[str, Argument]:
    return {argument.name: argument for argument in arguments}


_DEDUPLICATION_ARGUMENTS: Final = (
    Argument(DEDUPLICATION, FLAG, default=False),
    Argument(DEDUPLICATION_WINDOW, WHOLE, 1, TEN_YEARS, "milliseconds"),
    Argument(DEDUPLICATION_HEADER, TEXT),
    Argument(CACHE_SIZE, WHOLE, 1, MAX_CACHE_SIZE, "keys"),
    # RabbitMQ's plugin keeps the keys in memory or on disk; here their messages decide.
    Argument("x-cache-persistence", TEXT, choices=("memory", "disk"), compared=False),
)

# Arguments of every queue type unless the type rejects them. `queues.registry` adds type-specific ones.
SHARED_QUEUE_ARGUMENTS: Final = (
    Argument("x-message-ttl", WHOLE, 0, TEN_YEARS, "milliseconds"),
    Argument("x-expires", WHOLE, 1, TEN_YEARS, "milliseconds"),
    Argument("x-max-length", WHOLE, unit="messages"),
    Argument("x-max-length-bytes", WHOLE, unit="bytes"),
    Argument("x-overflow", TEXT, choices=tuple(OVERFLOWS)),
    Argument("x-dead-letter-exchange", TEXT),
    Argument("x-dead-letter-routing-key", TEXT, needs="x-dead-letter-exchange"),
    Argument("x-dead-letter-strategy", TEXT, choices=("at-most-once", "at-least-once")),
    Argument("x-max-priority", WHOLE, 0, 255),
    Argument("x-delivery-limit", WHOLE, -1, MAX_INT64, "failed deliveries, -1 for no limit"),
    Argument(RETRY_DELAYS, INTERVALS),
    Argument("x-single-active-consumer", FLAG),
    Argument("x-consumer-timeout", WHOLE, 0, TEN_YEARS, "milliseconds, 0 for none"),
    *_DEDUPLICATION_ARGUMENTS,
    # RabbitMQ's placement and storage of queues: accepted for compatibility, without effect.
    Argument("x-queue-mode", TEXT, choices=("default", "lazy")),
    Argument("x-queue-version", WHOLE, 1, 2),
    Argument("x-queue-leader-locator", TEXT, choices=("client-local", "balanced", "random", "least-leaders")),
    Argument("x-queue-master-locator", TEXT, choices=("client-local", "min-masters", "random"), compared=False),
    Argument("x-quorum-initial-group-size", WHOLE, 1),
    Argument("x-quorum-target-group-size", WHOLE, 1),
    Argument("x-max-in-memory-length", WHOLE, unit="messages"),
    Argument("x-max-in-memory-bytes", WHOLE, unit="bytes"),
    Argument("x-initial-cluster-size", WHOLE, 1),
    Argument("x-stream-max-segment-size-bytes", WHOLE, unit="bytes"),
    Argument("x-stream-filter-size-bytes", WHOLE, 16, 255, unit="bytes"),
    Argument("x-ha-policy", ANYTHING, compared=False),
    Argument("x-ha-policy-params", ANYTHING, compared=False),
)

EXCHANGE_ARGUMENTS: Final = declared_by_name(
    Argument("alternate-exchange", TEXT),
    Argument("hash-header", TEXT),
    Argument("hash-property", TEXT, choices=("message_id", "correlation_id", "timestamp")),
    # The delayed exchange checks the value.
    Argument("x-delayed-type", TEXT),
    Argument(HISTORY_LENGTH, WHOLE, 1, MAX_HISTORY_LENGTH, "messages"),
    *_DEDUPLICATION_ARGUMENTS,
    Argument(CACHE_TTL, WHOLE, 1, TEN_YEARS, "milliseconds"),
)

CONSUMER_ARGUMENTS: Final = declared_by_name(
    Argument("x-priority", WHOLE, -MAX_INT64, MAX_INT64),
    Argument("x-consumer-timeout", WHOLE, 0, TEN_YEARS, "milliseconds, 0 for none"),
    Argument("x-cancel-on-ha-failover", FLAG),
    # Arguments of a stream reader; the stream checks their values.
    Argument("x-stream-offset", ANYTHING),
    Argument("x-stream-consumer", ANYTHING),
    Argument("x-stream-filter", ANYTHING),
    Argument("x-stream-filter-routing-key", ANYTHING),
    Argument("x-stream-match-unfiltered", FLAG),
    # Arguments of a browser, which gets copies and removes nothing.
    Argument(BROWSE, FLAG),
    # Arguments of a reader that receives record batches.
    Argument("x-packed", FLAG),
    Argument("x-packed-until", WHOLE, 0, MAX_INT64, "an offset"),
    # Argument of a consumer of class message of 0-9 that keeps the received part of large messages.
    Argument("x-resume", FLAG),
    # Arguments of Qpid's 0-9 clients, some of which support only strings and numbers.
    Argument("x-filter-jms-selector", TEXT),
    Argument("x-filter-no-consume", ANYTHING),
    Argument("x-filter-auto-close", ANYTHING),
    # Arguments of a lease reader; the lease checks their values.
    Argument("x-lease", TEXT),
    Argument("x-lease-epoch", WHOLE, 1, needs="x-lease"),
    Argument("x-lease-batch", WHOLE, 1, needs="x-lease"),
    Argument("x-lease-first", WHOLE, needs="x-lease"),
    Argument("x-lease-count", WHOLE, 1, needs="x-lease"),
)


def parse_arguments(declared: dict[str, Argument], arguments: FieldTable, strict: bool) -> tuple[Validated, FieldTable]:
    """Return known arguments by name, validated, and unknown ones as received."""
    known: Validated = {}
    unknown: FieldTable = {}
    for name, value in arguments.items():
        argument = declared.get(name)
        if argument is not None:
            known[name] = argument.parse(value)
        elif strict:
            raise PreconditionFailed(
                f"unknown arg '{name}': received {shown(value)}, expected one of "
                f"{', '.join(declared)} (compat.strict is set for this virtual host)"
            )
        else:
            unknown[name] = value
    for name in known:
        needed = declared[name].needs
        if needed and needed not in known:
            raise PreconditionFailed(f"invalid arg '{name}': received without '{needed}', expected together with it")
    return known, unknown


class QueueSettings:
    """The settings of a queue from its arguments, and from policies; None if absent. Times in milliseconds, sizes in bytes.

    type                     a name in the registry of queue types
    message_ttl, expires     lifetime of a message, and of an unused queue
    max_length, max_length_bytes, overflow   the limit and the behaviour at it (default: DROP_HEAD)
    dead_letter_exchange, dead_letter_routing_key   the default exchange is ""; None for no dead-lettering
    at_least_once            whether a dead letter leaves this queue only once it is stored in the target queue
    max_priority             0 to 255
    delivery_limit           failed deliveries after which a message is dead-lettered
    retry_delays             delays after which a rejected message comes back, in their order; empty for none
    single_active_consumer   whether only one consumer at a time is served
    consumer_timeout         maximum time that a delivery may stay unacknowledged, 0 for no limit
    max_age                  retention of messages in a stream
    segment_size             bytes of bodies in a segment of a stream; max_segments: maximum number of sealed segments
    given                    validated arguments by name
    defaults                 values of the queue type for arguments that are absent
    known                    both, for type-specific arguments
    unknown                  unknown arguments, as received
    """

    __slots__ = (
        "at_least_once",
        "consumer_timeout",
        "dead_letter_exchange",
        "dead_letter_routing_key",
        "defaults",
        "delivery_limit",
        "expires",
        "given",
        "known",
        "max_age",
        "max_length",
        "max_length_bytes",
        "max_priority",
        "max_segments",
        "message_ttl",
        "overflow",
        "retry_delays",
        "segment_size",
        "single_active_consumer",
        "type",
        "unknown",
    )

    def __init__(self, given: Validated, unknown: FieldTable, defaults: Validated | None = None) -> None:
        known = {**defaults, **given} if defaults else given
        self.given = given
        self.defaults = defaults
        self.type: str = known.get("x-queue-type", CLASSIC)
        self.message_ttl: int | None = known.get("x-message-ttl")
        self.expires: int | None = known.get("x-expires")
        self.max_length: int | None = known.get("x-max-length")
        self.max_length_bytes: int | None = known.get("x-max-length-bytes")
        self.overflow: int = OVERFLOWS[known.get("x-overflow", "drop-head")]
        self.dead_letter_exchange: str | None = known.get("x-dead-letter-exchange")
        self.dead_letter_routing_key: str | None = known.get("x-dead-letter-routing-key")
        self.at_least_once: bool = known.get("x-dead-letter-strategy") == "at-least-once"
        self.max_priority: int | None = known.get("x-max-priority")
        limit: int | None = known.get("x-delivery-limit")
        self.delivery_limit: int | None = None if limit == -1 else limit
        delays: str | None = known.get(RETRY_DELAYS)
        self.retry_delays: tuple[int, ...] = () if delays is None else intervals_of(delays) or ()
        self.single_active_consumer: bool = known.get("x-single-active-consumer", False)
        self.consumer_timeout: int | None = known.get("x-consumer-timeout")
        age: str | None = known.get("x-max-age")
        self.max_age: int | None = None if age is None else interval_of(age)
        self.segment_size: int | None = known.get("x-stream-max-segment-size-bytes")
        self.max_segments: int | None = known.get("x-stream-max-segments")
        self.known = known
        self.unknown = unknown


class ExchangeSettings:
    """The settings in an exchange's arguments; None if an argument is absent."""

    __slots__ = ("alternate_exchange", "hash_header", "hash_property", "unknown")

    def __init__(self, known: Validated, unknown: FieldTable) -> None:
        self.alternate_exchange: str | None = known.get("alternate-exchange")
        self.hash_header: str | None = known.get("hash-header")
        name: str | None = known.get("hash-property")
        self.hash_property = None if name is None else name.replace("_", "-")
        self.unknown = unknown


def misspelt_arguments(declared: Iterable[str], arguments: Iterable[str]) -> list[str]:
    """Return a warning for each unknown argument `x-...` that is one edit away from a known one.

    An edit adds, removes or replaces a character, or swaps two adjacent ones.
    """
    known = list(declared)
    warnings = []
    for name in arguments:
        if name.startswith("x-") and name not in known:
            near = next((other for other in known if _is_one_edit(name, other)), None)
            if near is not None:
                # Names may contain invalid UTF-8, which some logs cannot write.
                warnings.append(f"unknown argument {name!a} has no effect; did you mean '{near}'?")
    return warnings


class UnknownArguments:
    """Logs unknown arguments: each name once, and at most `MAX_NOTED` names in `NOTED_INTERVAL`.

    noted  the names that have been logged
    now    returns milliseconds of a monotonic clock
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.noted: set[str] = set()
        self._now = now
        self._started = 0

    def note(self, declared: Iterable[str], arguments: Iterable[str], effect: str = "") -> None:
        """Log each argument that is misspelt, and each other one with its effect if that is given."""
        for name in islice(arguments, MAX_NOTED_AT_ONCE):
            if name in self.noted:
                continue
            # Names may contain invalid UTF-8, which some logs cannot write.
            text = "".join(misspelt_arguments(declared, [name])) or (effect and f"unknown argument {name!a} {effect}")
            if not text:
                continue
            if len(self.noted) >= MAX_NOTED:
                if self._now() < self._started + NOTED_INTERVAL:
                    return
                self.noted.clear()
            if not self.noted:
                self._started = self._now()
            self.noted.add(name)
            logger.warning("%s (compat.strict refuses it)", text)


def _is_one_edit(one: str, other: str) -> bool:
    if abs(len(one) - len(other)) > 1:
        return False
    at = next((index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), -1)
    if at < 0:
        return True
    one, other = one[at:], other[at:]
    swapped = one[1::-1] + one[2:]
    return other in (one[1:], swapped) or one[1:] in (other, other[1:]) or one == other[1:]


class ConsumerSettings:
    """The settings in a consumer's arguments.

    priority   higher is served first, 0 by default
    timeout    maximum time that a delivery may stay unacknowledged, in milliseconds; 0 for no limit, None if absent
    unknown    unknown arguments, as received
    """

    __slots__ = ("priority", "timeout", "unknown")

    def __init__(self, known: Validated, unknown: FieldTable) -> None:
        self.priority: int = known.get("x-priority", 0)
        self.timeout: int | None = known.get("x-consumer-timeout")
        self.unknown = unknown


def parse_exchange_arguments(arguments: FieldTable, *, strict: bool) -> ExchangeSettings:
    """Validate the arguments of exchange.declare.

    Raises PreconditionFailed for a known argument with a bad value, and with `strict` for an unknown argument.
    """
    known, unknown = parse_arguments(EXCHANGE_ARGUMENTS, arguments, strict)
    if "hash-header" in known and "hash-property" in known:
        raise PreconditionFailed("invalid arg 'hash-property': received together with 'hash-header', expected one of them")
    return ExchangeSettings(known, unknown)


def parse_consumer_arguments(arguments: FieldTable, *, strict: bool) -> ConsumerSettings:
    """Validate the arguments of basic.consume.

    Raises PreconditionFailed for a known argument with a bad value, and with `strict` for an unknown argument.
    """
    return ConsumerSettings(*parse_arguments(CONSUMER_ARGUMENTS, arguments, strict))


def inequivalent(name: str, what: str, received: FieldValue, current: FieldValue) -> str:
    """Return the error text of a refused redeclaration; `what` is, for example, "queue 'q' in vhost '/'"."""
    then, now = shown(received), shown(current)
    if received is not None and current is not None and _kind(received) != _kind(current):
        then += f" ({_kind(received)})"
        now += f" ({_kind(current)})"
    return f"inequivalent arg '{name}' for {what}: received {then} but current is {now}"


def _comparable(value: FieldValue) -> Frozen:
    return freeze(value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value)


def equivalent(declared: dict[str, Argument], current: FieldTable, received: FieldTable, what: str) -> str | None:
    """Compare the arguments of a redeclaration with the current ones.

    Returns None if they are equivalent, else the error text for the first difference (0-9-1
    queue.declare.passive.equivalent, exchange.declare.passive.equivalent). Integers are compared by value, whatever
    their type on the wire; the order of arguments does not matter.
    """
    for name in sorted({**current, **received}):
        argument = declared.get(name)
        if argument is not None and not argument.compared:
            continue
        default = argument.default if argument is not None else None
        now = current.get(name, default)
        then = received.get(name, default)
        # A void argument differs from an absent one.
        absent = default is None and (name in current) != (name in received)
        if absent or _comparable(now) != _comparable(then):
            return inequivalent(name, what, then, now)
    return None
