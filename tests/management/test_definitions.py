"""Round trips of definitions: export, import into an empty broker, export again."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.arguments import (
    ANYTHING,
    EXCHANGE_ARGUMENTS,
    FLAG,
    INTERVAL,
    INTERVALS,
    WHOLE,
    Argument,
    parse_exchange_arguments,
)
from leveret.broker.arguments import (
    TEXT as A_TEXT,
)
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.base import Effort
from leveret.broker.exchanges.registry import TYPES as EXCHANGE_TYPES
from leveret.broker.exchanges.registry import make_exchange
from leveret.broker.exchanges.routing_types import ROUTING_TYPES
from leveret.broker.parameters import OPERATOR, SHOVEL, UNKNOWN, ParameterWatch, Setter, Value
from leveret.broker.queues.deduplication_settings import exchange_deduplication
from leveret.broker.queues.registry import QUEUE_ARGUMENTS, parse_queue_arguments
from leveret.broker.queues.registry import TYPES as QUEUE_TYPES
from leveret.broker.values import FieldTable, Float32, Int16, UInt32
from leveret.management.definitions.conversation import Conversation, T, conduct
from leveret.management.definitions.document import Origin, read_document
from leveret.management.definitions.exporting import export
from leveret.management.definitions.importing import Options, import_document
from leveret.management.definitions.report import Report
from leveret.management.definitions.sections import SECTIONS
from leveret.management.http.binding_keys import special_values
from leveret.management.json_values import plain
from leveret.protocols.convert.values import encoded_sized
from leveret.security.passwords import ARGON2ID
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.fieldtable import decode_table
from tests.management.harness import Harness
from tests.management.http.typed_arguments import ENCODED
from tests.support.examples import examples

ORIGIN: Final = Origin("4.1.0", "1", "node")
VHOSTS: Final = ("/", "a", "b/c")


def rabbitmq_hash(function: str) -> str:
    return base64.b64encode(b"salt" + hashlib.new(function, b"saltsecret").digest()).decode()


def argon2id(costs: str, hash: str = "bm8gcGFzc3dvcmQgaGFzIHRoaXMgaGFzaCwgZXZlci4", kind: str = "argon2id") -> str:
    return f"${kind}$v=19${costs}$bGV2ZXJldC1uby1zYWx0IQ${hash}"


KEY: Final = base64.b64encode(bytes(32)).decode()
PASSWORDS: Final[tuple[dict[str, Any], ...]] = (
    {"password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256"},
    *(
        {"password_hash": rabbitmq_hash(name), "hashing_algorithm": f"rabbit_password_hashing_{name}"}
        for name in ("sha256", "sha512", "md5")
    ),
    {
        "password_hash": argon2id("m=7168,t=5,p=1"),
        "hashing_algorithm": ARGON2ID,
        "scram_keys": [f"SCRAM-SHA-256$65536:c2FsdA==${KEY}:{KEY}"],
    },
    {
        "password_hash": argon2id("m=65536,t=3,p=4"),
        "hashing_algorithm": ARGON2ID,
        "scram_keys": [],
    },
)


def names(prefix: str) -> st.SearchStrategy[str]:
    return st.integers(0, 3).map(lambda number: f"{prefix}{number}")


def table(one: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(one)


TEXT: Final = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
TAGS: Final = st.lists(st.sampled_from(["administrator", "management", "é"]), unique=True)
VHOST: Final = st.sampled_from(VHOSTS)
LIMIT: Final = st.integers(0, 9)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def user(name: str) -> st.SearchStrategy[dict[str, Any]]:
    limits = st.fixed_dictionaries({}, optional={"max-connections": LIMIT, "max-channels": LIMIT})
    return st.builds(lambda one, secret: {**one, **secret}, table({"name": st.just(name), "tags": TAGS, "limits": limits}),
                     st.sampled_from(PASSWORDS))  # fmt: skip


def vhost(name: str) -> st.SearchStrategy[dict[str, Any]]:
    metadata = table(
        {
            "description": TEXT,
            "tags": TAGS,
            "default_queue_type": st.sampled_from(["classic", "quorum", "stream"]),
            "protected_from_deletion": st.booleans(),
        }
    )
    settings = st.fixed_dictionaries(
        {},
        optional={
            "strict": st.just(True),
            "qos_global": st.sampled_from(["rabbitmq", "spec"]),
            "consumer_timeout": st.sampled_from([0.5, 60]),
            "max_queues": st.just(1000),
            "max_connections": st.sampled_from([-1, 1000]),
        },
    )
    return st.builds(
        lambda own, extra, at: {"name": name, **(own | {"metadata": own} if at else {"metadata": own}), **extra},
        metadata, settings, st.booleans(),
    )  # fmt: skip


def value_of(argument: Argument) -> st.SearchStrategy[Any]:
    """Values of an argument, of every kind that arguments have."""
    if argument.name == "x-delayed-type":
        return st.sampled_from(list(ROUTING_TYPES))
    if argument.choices:
        return st.sampled_from(argument.choices)
    return {
        # The lowest lifetime of a queue could pass during the test.
        WHOLE: st.sampled_from([(argument.lowest + argument.highest) // 2 + 1, argument.highest]),
        FLAG: st.booleans(),
        A_TEXT: st.text("aé. ", min_size=1, max_size=8),
        ANYTHING: JSON,
        INTERVAL: st.sampled_from(["7D", "1Y"]),
        INTERVALS: st.sampled_from(["5s", "5s,30m"]),
    }[argument.kind]


Values: TypeAlias = dict[str, st.SearchStrategy[Any]]
# Arguments that no registry has. Strict vhosts refuse them.
UNKNOWN_ARGUMENTS: Final[Values] = {"x-own": JSON, "own": TEXT}
QUEUE_VALUES: Final = {name: value_of(argument) for name, argument in QUEUE_ARGUMENTS.items()}
EXCHANGE_VALUES: Final = {name: value_of(argument) for name, argument in EXCHANGE_ARGUMENTS.items()}


def accepted(draw: st.DrawFn, values: Values, start: dict[str, Any], check: Callable[[Any], object]) -> dict[str, Any]:
    """Return drawn arguments that the broker accepts together."""
    arguments = dict(start)
    for name in draw(st.lists(st.sampled_from(sorted(values)), max_size=6)):
        candidate = {name: draw(values[name]), **arguments}
        with suppress(PreconditionFailed):
            check(candidate)
            arguments = candidate
    return arguments


# Arguments with the types that JSON lacks.
TYPED: Final[list[dict[str, Any]]] = [
    {"arguments": plain(decode_table(fields, 0, len(fields), RABBITMQ)), "encoded": base64.b64encode(fields).decode()}
    for fields in ENCODED.values()
]
# Those whose values JSON lacks, too, with an unknown name and no other argument.
SPECIAL: Final = [one for one in TYPED if special_values(one["encoded"]) and set(one["arguments"]) == {"n"}]


def with_types(draw: st.DrawFn, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as an object of a file has them, perhaps with one of a type that JSON lacks."""
    special = draw(st.none() | st.sampled_from(SPECIAL))
    if special is None:
        return {"arguments": arguments}
    fields = encoded_sized(arguments) + base64.b64decode(special["encoded"])
    encoded = base64.b64encode(fields).decode()
    return {"arguments": {**arguments, **special["arguments"]}, "encoded": encoded}


@st.composite
def queue(draw: st.DrawFn, kind: str, values: Values = QUEUE_VALUES, typed: bool = False) -> dict[str, Any]:
    of_type = QUEUE_TYPES[kind]
    flags = {"durable": True, "auto_delete": False}
    if not of_type.durable:
        flags = {name: draw(st.booleans()) for name in flags}
    start = {"x-queue-type": kind}
    if of_type.needs:
        start[of_type.needs] = draw(QUEUE_VALUES[of_type.needs])
    arguments = accepted(
        draw,
        values,
        start,
        lambda found: parse_queue_arguments(found, **flags, exclusive=False, strict=False),
    )
    own = {"vhost": draw(VHOST), "name": draw(names("q")), "type": kind}
    return {**own, **flags, **(with_types(draw, arguments) if typed else {"arguments": arguments})}


@st.composite
def exchange(draw: st.DrawFn, kind: str, values: Values = EXCHANGE_VALUES, typed: bool = False) -> dict[str, Any]:
    def check(arguments: dict[str, Any]) -> None:
        parse_exchange_arguments(arguments, strict=False)
        make_exchange(kind, "x", arguments=arguments)
        exchange_deduplication(kind, arguments)

    start: dict[str, Any] = {}
    try:
        check(start)
    except PreconditionFailed:
        start = {"x-delayed-type": draw(EXCHANGE_VALUES["x-delayed-type"])}
    own = {"vhost": draw(VHOST), "name": draw(names("x")), "type": kind}
    flags = {name: draw(st.booleans()) for name in ("durable", "auto_delete", "internal")}
    arguments = accepted(draw, values, start, check)
    return {**own, **flags, **(with_types(draw, arguments) if typed else {"arguments": arguments})}


QUEUE: Final = st.sampled_from(list(QUEUE_TYPES)).flatmap(queue)
EXCHANGE: Final = st.sampled_from(list(EXCHANGE_TYPES)).flatmap(exchange)
POLICY: Final[dict[str, st.SearchStrategy[Any]]] = {
    "pattern": st.sampled_from(["", "^q", "x\\d"]),
    "definition": st.sampled_from([{"max-length": 5}, {"message-ttl": 7, "expires": 60000}]),
    "priority": st.integers(-5, 5),
    "apply-to": st.sampled_from(["queues", "classic_queues"]),
}
PARAMETER: Final = st.one_of(
    st.tuples(
        st.just("vhost-limits"),
        st.just("limits"),
        table({"max-queues": st.integers(500, 900), "max-connections": LIMIT}),
    ),
    st.tuples(st.just("operator_policy"), names("o"), table(POLICY)),
    st.tuples(
        st.just("shovel"),
        names("s"),
        table({"src-uri": st.just("amqp://u:p@host"), "src-queue": TEXT, "dest-uri": st.just(["amqp://"]), "note": JSON}),
    ),
)
GLOBAL: Final = st.one_of(
    table({"name": st.just("cluster_name"), "value": st.text("abc", min_size=1)}),
    table({"name": names("owner"), "value": JSON}),
    table({"name": names("leveret-alert-rule-"), "value": JSON}),
)


def unique(strategy: st.SearchStrategy[Any], *keys: str) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, max_size=4, unique_by=lambda one: tuple(json.dumps(one[key], sort_keys=True) for key in keys))


DOCUMENTS: Final = table(
    {
        "users": st.tuples(user("u0"), user("é, 1")).map(list),
        "vhosts": st.tuples(*(vhost(name) for name in VHOSTS)).map(list),
        "permissions": unique(
            table({"user": st.sampled_from(["u0", "é, 1"]), "vhost": VHOST, "configure": st.just("^a"),
                   "write": st.just(""), "read": st.sampled_from([".*", "b|c"])}), "user", "vhost"),
        "topic_permissions": unique(
            table({"user": st.just("u0"), "vhost": VHOST, "exchange": st.sampled_from(["amq.topic", "", "none"]),
                   "write": st.just("^{username}"), "read": st.just("")}), "vhost", "exchange"),
        "parameters": unique(
            st.builds(lambda where, one: {"vhost": where, "component": one[0], "name": one[1], "value": one[2]},
                      VHOST, PARAMETER), "vhost", "component", "name"),
        "global_parameters": unique(GLOBAL, "name"),
        "policies": unique(table({"vhost": VHOST, "name": names("p"), **POLICY}), "vhost", "name"),
        "exchanges": unique(EXCHANGE, "vhost", "name"),
        "queues": unique(QUEUE, "vhost", "name"),
        "bindings": unique(
            table({"vhost": VHOST, "source": st.sampled_from(["x0", "x1", "amq.topic", "amq.headers", ""]),
                   "destination": st.sampled_from(["q0", "q1", "x1"]), "routing_key": st.sampled_from(["1", "2"]),
                   "arguments": st.sampled_from([{}, {"x-match": "all", "n": 1}, *TYPED])})
            .map(lambda one: {**one, **(one["arguments"] if "encoded" in one["arguments"] else {})})
            .map(lambda one: {**one, "destination_type": "exchange" if one["destination"] == "x1" else "queue"}),
            "vhost", "source", "destination", "routing_key", "arguments"),
    }
)  # fmt: skip


@contextmanager
def empty_broker() -> Iterator[Harness]:
    harness = Harness()
    try:
        yield harness
    finally:
        harness.close()


def run(harness: Harness, conversation: Conversation[T]) -> T:
    return conduct(conversation, lambda name, arguments: harness.call(name, **arguments))


def exported(harness: Harness) -> dict[str, Any]:
    return run(harness, export(ORIGIN)).document


def imported(harness: Harness, document: object, **options: Any) -> Report:
    return run(harness, import_document(read_document(json.dumps(document).encode(), None), Options(**options)))


@examples(100, deadline=None)
@given(DOCUMENTS)
def test_round_trip(document: dict[str, Any]) -> None:
    check_round_trip(document)


def check_round_trip(document: dict[str, Any]) -> None:
    with empty_broker() as first, empty_broker() as second:
        report = imported(first, document)
        assert not report.refused, report.refusals()
        skipped = {(item.kind, json.dumps(item.identity, sort_keys=True)) for item in report.skipped}
        found = exported(first)
        for section in SECTIONS:
            known = {section.key(section.read(item, None)): item for item in found[section.name]}
            for item in document.get(section.name, []):
                entry = section.read(item, None)
                identity = {name: entry[name] for name in section.identity}
                if (section.noun, json.dumps(identity, sort_keys=True)) not in skipped:
                    assert item.items() <= known[section.key(entry)].items(), section.name
        report = imported(second, found)
        assert not report.refused and not report.skipped, report
        assert exported(second) == found
        for harness in (first, second):
            report = imported(harness, found)
            assert report.is_equal() and not report.skipped, report
            assert exported(harness) == found


def test_an_export_for_rabbitmq_names_the_users_that_need_a_new_password() -> None:
    document = {"users": [{"name": f"u{number}", "tags": [], **secret} for number, secret in enumerate(PASSWORDS)]}
    with empty_broker() as harness:
        imported(harness, document)
        found = run(harness, export(ORIGIN, for_rabbitmq=True))
        assert found.without_passwords == ["u4", "u5"]
        users = found.document["users"]
        assert [one.get("password_hash") for one in users] == [one["password_hash"] for one in PASSWORDS[:4]] + [None, None]
        assert not any("scram_keys" in one for one in users)


def test_an_export_for_rabbitmq_has_a_hash_of_the_default_user() -> None:
    with empty_broker() as harness:
        found = run(harness, export(ORIGIN, for_rabbitmq=True))
        assert found.without_passwords == []
        assert found.document["users"][0]["hashing_algorithm"] == "rabbit_password_hashing_sha256"


def test_the_default_user_in_an_export() -> None:
    """It has the hash that it keeps when the API stores it, and logs in with its password elsewhere."""
    with empty_broker() as first, empty_broker() as second:
        found = exported(first)
        first.call("users.keep_default")
        assert exported(first)["users"] == found["users"]
        imported(second, found)
        assert second.users.verify("guest", b"guest")
        assert not second.users.verify("guest", b"other")
        assert second.call("users.list")[0]["source"] == "metadata"


def test_the_permissions_in_a_user() -> None:
    own = {"configure": "^a", "write": "^b", "read": "^c"}
    users = [{"name": "u", "password_hash": "", "permissions": {"/": own, "new": own}}]
    with empty_broker() as harness:
        assert not imported(harness, {"users": users, "vhosts": [{"name": "new"}]}).refused
        assert exported(harness)["permissions"] == [{"user": "u", "vhost": name, **own} for name in ("/", "new")]
        for wrong in ({"/": {"configure": ""}}, {"/": 7}, {"none": own}):
            [refused] = imported(harness, {"users": [{**users[0], "permissions": wrong}]}).refused
            assert refused.kind == "permissions", wrong


@pytest.mark.parametrize(
    "change",
    [
        {"password_hash": argon2id("m=65537,t=1,p=1")},
        {"password_hash": argon2id("m=64,t=17,p=1")},
        {"password_hash": argon2id("m=64,t=1,p=9")},
        {"password_hash": argon2id("m=64,t=1,p=1", hash="")},
        {"password_hash": argon2id("m=64,t=1,p=1", kind="argon2i")},
        {"hashing_algorithm": "rabbit_password_hashing_sha256"},
        {"hashing_algorithm": "bcrypt"},
        {"scram_keys": ["SCRAM-SHA-1$4096:c2FsdA==$AAAA:AAAA"]},
        {"scram_keys": [f"SCRAM-SHA-256$4095:c2FsdA==${KEY}:{KEY}"]},
        {"scram_keys": [f"SCRAM-SHA-256$4096:${KEY}:{KEY}"]},
        {"scram_keys": [f"SCRAM-SHA-512$4096:c2FsdA==${KEY}:{KEY}"]},
        {"scram_keys": ["SCRAM-SHA-256"]},
    ],
)  # fmt: skip
def test_invalid_passwords_are_refused(change: dict[str, Any]) -> None:
    document = {"users": [{"name": "u", **PASSWORDS[4], **change}]}
    with empty_broker() as harness:
        for dry_run in (True, False):
            [refused] = imported(harness, document, dry_run=dry_run).refused
            assert "expected" in refused.reason
        assert [one["name"] for one in exported(harness)["users"]] == ["guest"]


@pytest.mark.parametrize("kind", sorted(QUEUE_TYPES))
def test_every_type_of_queue_round_trips(kind: str) -> None:
    round_trips(table({"queues": unique(queue(kind, QUEUE_VALUES | UNKNOWN_ARGUMENTS, typed=True), "vhost", "name")}))


@pytest.mark.parametrize("kind", sorted(EXCHANGE_TYPES))
def test_every_type_of_exchange_round_trips(kind: str) -> None:
    round_trips(
        table({"exchanges": unique(exchange(kind, EXCHANGE_VALUES | UNKNOWN_ARGUMENTS, typed=True), "vhost", "name")})
    )


def round_trips(documents: st.SearchStrategy[dict[str, Any]]) -> None:
    @examples(20, deadline=None)
    @given(documents)
    def check(document: dict[str, Any]) -> None:
        users = [{"name": "u", "password_hash": "", "tags": []}]
        check_round_trip({"users": users, "vhosts": [{"name": name} for name in VHOSTS], **document})

    check()


def test_super_streams_round_trip() -> None:
    with empty_broker() as first, empty_broker() as second:
        first.call("streams.add_super", name="orders", partitions=3)
        found = exported(first)
        assert not imported(second, found).skipped
        assert exported(second) == found
        assert second.call("streams.list_supers") == first.call("streams.list_supers")


@pytest.mark.parametrize("strict", [False, True])
def test_bindings_of_the_default_exchange_round_trip(strict: bool) -> None:
    with empty_broker() as first, empty_broker() as second:
        for name in ("q", "other"):
            first.call("queues.add", name=name)
        vhost = first.broker.vhost("/")
        vhost.bind(vhost.queues["q"], "", "key", {}, default=True)
        vhost.bind(vhost.queues["q"], "", "other", {}, default=True)
        found = exported(first)
        assert [(one["source"], one["routing_key"]) for one in found["bindings"]] == [("", "key"), ("", "other")]
        assert run(first, export(ORIGIN, for_rabbitmq=True)).document["bindings"] == []
        if strict:
            found["vhosts"] = [{**one, "strict": True} for one in found["vhosts"]]
        assert not imported(second, found).skipped
        assert exported(second)["bindings"] == found["bindings"]
        own = {"source": "", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "q"}
        assert len(imported(second, {"bindings": [own]}).skipped) == 1


def decoded(fields: bytes) -> FieldTable:
    return decode_table(fields, 0, len(fields), RABBITMQ)


# Arguments of bindings, each with the fields that a client of AMQP 0-9-1 has sent: none from other clients.
BOUND: Final[list[tuple[dict[str, Any], bytes]]] = [
    *((decoded(fields), fields) for fields in ENCODED.values()),
    *(
        ({"v": value, "x-match": "all"}, b"")
        for value in (
            *(datetime(2026, 1, 2, tzinfo=UTC), Decimal("-1.50"), b"a\xff", float("nan"), float("-inf")),
            *("a\udcff", Int16(5), UInt32(1 << 31), Float32(1.5), [{"\udcfe": b"x"}, Int16(-1)], "plain", 1 << 40),
        )
    ),
]


def test_arguments_of_bindings_keep_their_types() -> None:
    """Bindings match the same messages after an import, and clients remove them with the same arguments."""
    with empty_broker() as first, empty_broker() as second:
        first.call("users.add", name="u")
        first.call("queues.add", name="q")
        vhost = first.broker.vhost("/")
        for number, (arguments, encoded) in enumerate(BOUND):
            vhost.bind(vhost.queues["q"], "amq.headers", str(number), arguments, encoded)
        found = exported(first)
        assert not any("encoded" in one for one in run(first, export(ORIGIN, for_rabbitmq=True)).document["bindings"])
        report = imported(second, found)
        assert not report.refused and not report.skipped
        listed = [
            sorted(harness.call("bindings.list"), key=lambda row: int(row["routing_key"])) for harness in (first, second)
        ]
        assert listed[0] == listed[1]
        for harness in (first, second):
            assert imported(harness, found).is_equal()
            assert exported(harness) == found
            vhost = harness.broker.vhost("/")
            queue, exchange = vhost.queues["q"], vhost.exchanges["amq.headers"]
            for number, (arguments, _) in enumerate(BOUND):
                headers = {name: value for name, value in arguments.items() if name != "x-match"}
                assert queue in exchange.match("", headers, "", Effort()), arguments
                assert vhost.unbind(queue, "amq.headers", str(number), arguments), arguments
            assert exchange.match("", {}, "", Effort()) == []


TYPES_OF_JSON_AND_OTHERS: Final = [arguments for arguments, _ in BOUND if "x-match" in arguments]


@pytest.mark.parametrize("default_queue_type", ["classic", "quorum"])
def test_declarations_keep_the_types_of_arguments(default_queue_type: str) -> None:
    """After an import, clients declare queues and exchanges with the same arguments again."""

    def declare(harness: Harness, number: int, arguments: FieldTable) -> None:
        vhost, flags = harness.broker.vhost("v"), {"durable": True, "auto_delete": False}
        vhost.declare_queue(f"q{number}", None, **flags, arguments=arguments)
        vhost.declare_exchange(f"x{number}", "direct", **flags, internal=False, arguments=arguments)

    with empty_broker() as first, empty_broker() as second:
        first.call("users.add", name="u")
        first.call("vhosts.add", name="v", default_queue_type=default_queue_type)
        for number, arguments in enumerate(TYPES_OF_JSON_AND_OTHERS):
            declare(first, number, arguments)
        found = exported(first)
        for_rabbitmq = run(first, export(ORIGIN, for_rabbitmq=True)).document
        for section in ("queues", "exchanges"):
            typed = sum(bool(special_values(one.get("encoded", ""))) for one in found[section])
            assert typed == sum("encoded" in one for one in found[section]) > 5
            assert not any("encoded" in one for one in for_rabbitmq[section])
        report = imported(second, found)
        assert not report.refused and not report.skipped
        assert exported(second) == found
        for number, arguments in enumerate(TYPES_OF_JSON_AND_OTHERS):
            declare(second, number, arguments)
        assert imported(second, for_rabbitmq | {"users": []}).is_equal()
        text = {one["name"]: plain(one["arguments"]) for one in found["queues"] if "encoded" in one}
        for name, arguments in text.items():
            with pytest.raises(PreconditionFailed, match="inequivalent arg"):
                declare(second, int(name[1:]), arguments)
        changed = [
            {
                **one,
                "encoded": encoded_of({"x-match": "all", "v": Decimal("7.25")}),
                "arguments": {"x-match": "all", "v": "7.25"},
            }
            for one in found["queues"]
        ]
        assert len(imported(second, {"queues": changed}).skipped) == len(changed)


def encoded_of(arguments: FieldTable) -> str:
    return base64.b64encode(encoded_sized(arguments)).decode()


def test_bindings_that_only_types_distinguish() -> None:
    with empty_broker() as first, empty_broker() as second:
        first.call("queues.add", name="q")
        vhost = first.broker.vhost("/")
        for value in (b"a", "a"):
            vhost.bind(vhost.queues["q"], "amq.headers", "", {"v": value})
        found = exported(first)
        assert len(found["bindings"]) == 2
        assert not imported(second, found).skipped
        assert exported(second) == found
        # A file without the types has the binding of the text.
        untyped = [{key: value for key, value in one.items() if key != "encoded"} for one in found["bindings"]]
        assert imported(second, {"bindings": untyped}).is_equal()


def test_a_file_without_types_has_the_same_binding_if_only_widths_differ() -> None:
    fields = ENCODED["cxGj6w"]
    with empty_broker() as harness:
        harness.call("queues.add", name="q")
        vhost = harness.broker.vhost("/")
        vhost.bind(vhost.queues["q"], "amq.headers", "", decoded(fields), fields)
        [binding] = exported(harness)["bindings"]
        del binding["encoded"]
        assert imported(harness, {"bindings": [binding]}).is_equal()


@pytest.mark.parametrize(
    ("arguments", "encoded"),
    [
        ({"n": 5}, "x"),
        ({"n": 5}, base64.b64encode(b"\x01n").decode()),
        ({"n": 5}, base64.b64encode(b"\x01nb").decode()),
        ({"n": 5}, base64.b64encode(b"\x01nb\x05\x05").decode()),
        ({"n": 5}, base64.b64encode(b"\x01n?\x05").decode()),
        ({"n": "a"}, base64.b64encode(b"\x01nS\0\0\0\x02a").decode()),
        ({"n": 6}, base64.b64encode(b"\x01nb\x05").decode()),
        ({}, base64.b64encode(b"\x01nb\x05").decode()),
        ({"n": 5}, base64.b64encode(b"\x01nF\xff\xff\xff\xff" * 1000).decode()),
    ],
)
def test_invalid_types_of_arguments_are_refused(arguments: dict[str, Any], encoded: str) -> None:
    binding = {"vhost": "/", "source": "amq.headers", "destination": "q", "destination_type": "queue"}
    with empty_broker() as harness:
        harness.call("queues.add", name="q")
        for dry_run in (True, False):
            document = {"bindings": [{**binding, "arguments": arguments, "encoded": encoded}]}
            [refused] = imported(harness, document, dry_run=dry_run).refused
            assert "'encoded'" in refused.reason
        assert harness.call("bindings.list") == []


class ShovelWatch(ParameterWatch):
    """Shovels that never run: counts how often they would restart."""

    def __init__(self) -> None:
        self.changes = 0

    async def prepare(self) -> None:
        pass

    def check(self, name: str, value: Value, setter: Setter) -> None:
        pass

    def keeps(self, name: str, value: Value, setter: Setter) -> bool:
        return True

    def changed(self, vhost: str, name: str, value: Value | None, setter: Setter) -> None:
        self.changes += 1


def test_the_users_of_shovels_round_trip() -> None:
    setters = {"operator": OPERATOR, "user": Setter("u"), "unknown": UNKNOWN}
    value = {"src-uri": "amqp://u:p@host", "src-queue": "q", "dest-uri": "amqp:///"}
    with empty_broker() as first, empty_broker() as second:
        watches = [ShovelWatch(), ShovelWatch()]
        for harness, watch in zip((first, second), watches, strict=True):
            harness.broker.parameter_watches[SHOVEL] = watch
        first.call("users.add", name="u")
        for name, setter in setters.items():
            first.broker.vhost("/").parameters.set(SHOVEL, name, value, setter=setter)
        found = exported(first)
        users = {one["name"]: one.get("user") for one in found["parameters"]}
        assert users == {"operator": None, "user": "u", "unknown": ""}
        imported(second, found)
        assert exported(second) == found
        for harness in (first, second):
            assert {name: harness.broker.vhost("/").parameters.setter(SHOVEL, name) for name in setters} == setters
            # A file without users, as an earlier version and RabbitMQ write it, changes nothing either.
            plain = [{key: item for key, item in one.items() if key != "user"} for one in found["parameters"]]
            for parameters in (found["parameters"], plain):
                assert imported(harness, {"parameters": parameters}).is_equal()
        assert [watch.changes for watch in watches] == [3, 3]


def test_a_shovel_of_a_deleted_user_is_that_of_the_one_who_imports_it() -> None:
    value = {"src-uri": "amqp:///", "src-queue": "q", "dest-uri": "amqp:///"}
    with empty_broker() as first, empty_broker() as second:
        for harness in (first, second):
            harness.broker.parameter_watches[SHOVEL] = ShovelWatch()
        for name in ("gone", "kept"):
            first.call("users.add", name=name)
            first.broker.vhost("/").parameters.set(SHOVEL, name, value, setter=Setter(name))
        first.broker.vhost("/").parameters.set(SHOVEL, "default", value, setter=Setter("guest"))
        first.call("users.delete", name="gone")
        found = exported(first)
        assert imported(first, found).is_equal()
        for dry_run in (True, False):
            report = imported(second, found, dry_run=dry_run)
            assert not report.refused
            assert {item.identity["name"]: item.reason for item in report.noted()} == {
                name: f"user '{user}' does not exist; the shovel acts for the one who imports it"
                for name, user in (("gone", "gone"), ("default", "guest"))
            }
        parameters = second.broker.vhost("/").parameters
        assert [parameters.setter(SHOVEL, name) for name in ("gone", "default", "kept")] == [OPERATOR] * 2 + [
            Setter("kept")
        ]
        assert imported(second, found).is_equal()


def test_a_shovel_of_the_default_user_stays_its_own_without_other_users() -> None:
    value = {"src-uri": "amqp:///", "src-queue": "q", "dest-uri": "amqp:///"}
    own = {"vhost": "/", "component": SHOVEL, "name": "s", "value": value, "user": "guest"}
    with empty_broker() as harness:
        harness.broker.parameter_watches[SHOVEL] = ShovelWatch()
        assert not imported(harness, {"parameters": [own]}).noted()
        assert harness.broker.vhost("/").parameters.setter(SHOVEL, "s") == Setter("guest")
