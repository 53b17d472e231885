"""The method tables against the specifications' XML, field by field, and against the constants that code uses."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from leveret.wire.amqp0 import constants
from leveret.wire.amqp0.model import TYPE_NAMES, FieldSpec, MethodSpec, Version
from leveret.wire.amqp0.notation import parse
from leveret.wire.amqp0.specs import V0_9, V0_9_1

SPECIFICATIONS = Path(__file__).parents[4] / "shared" / "spec"
VERSIONS = pytest.mark.parametrize("version", [V0_9_1, V0_9], ids=lambda version: version.name)


def load(version: Version) -> ElementTree.Element:
    path = SPECIFICATIONS / f"amqp-{version.name}.xml"
    if not path.exists():
        pytest.skip(f"the specification is not here: {path}")
    return ElementTree.parse(path).getroot()


def domains(root: ElementTree.Element) -> dict[str, str]:
    return {domain.attrib["name"]: domain.attrib["type"] for domain in root.iter("domain")}


def wire_type(field: ElementTree.Element, types: dict[str, str]) -> str:
    name = field.get("type") or field.attrib["domain"]
    return types.get(name, name)


def assert_fields(ours: list[FieldSpec], element: ElementTree.Element, types: dict[str, str]) -> None:
    theirs = element.findall("field")
    assert [field.spec_name for field in ours] == [field.attrib["name"] for field in theirs]
    for field, expected in zip(ours, theirs, strict=True):
        # A long string that is content is not text.
        assert TYPE_NAMES[field.type].replace("octets", "longstr") == wire_type(expected, types), field.spec_name
        assert field.name == (field.name if field.extension else field.spec_name.replace("-", "_"))
        # RabbitMQ uses two fields of exchange.declare that 0-9-1 reserves.
        reserved_by_spec = expected.get("reserved") == "1"
        assert field.reserved == (reserved_by_spec and not field.extension)
        assert not field.extension or reserved_by_spec or field.spec_name == "reserved"


@VERSIONS
def test_constants_are_those_of_the_specification(version: Version) -> None:
    root = load(version)
    expected = {
        element.attrib["name"]: (int(element.attrib["value"]), element.get("class", "").removesuffix("-error"))
        for element in root.findall("constant")
    }
    ours = {
        name: (constant.value, constant.error) for name, constant in version.constants.items() if not constant.extension
    }
    assert ours == expected


@VERSIONS
def test_classes_are_those_of_the_specification(version: Version) -> None:
    root = load(version)
    types = domains(root)
    expected = {int(element.attrib["index"]): element for element in root.findall("class")}
    ours = {class_id: owner for class_id, owner in version.classes.items() if not owner.extension}
    assert ours.keys() == expected.keys()
    for class_id, owner in ours.items():
        element = expected[class_id]
        assert owner.name == element.attrib["name"]
        assert owner.spec_receivers == [chassis.attrib["name"] for chassis in element.findall("chassis")]
        assert_fields(owner.properties, element, types)


@VERSIONS
def test_methods_are_those_of_the_specification(version: Version) -> None:
    root = load(version)
    types = domains(root)
    expected = {
        (int(owner.attrib["index"]), int(element.attrib["index"])): (owner.attrib["name"], element)
        for owner in root.findall("class")
        for element in owner.findall("method")
    }
    ours = {(spec.class_id, spec.method_id): spec for spec in version.methods.values() if not spec.extension}
    assert ours.keys() == expected.keys()
    for key, spec in ours.items():
        class_name, element = expected[key]
        assert spec.name == f"{class_name}.{element.attrib['name']}"
        assert spec.sync == (element.get("synchronous") == "1"), spec.name
        assert spec.content == (element.get("content") == "1"), spec.name
        chassis = [item.attrib["name"] for item in element.findall("chassis")]
        assert spec.spec_receivers == chassis, spec.name
        assert spec.server_receives or "server" not in chassis, spec.name
        assert spec.client_receives or "client" not in chassis, spec.name
        assert spec.responses == [f"{class_name}.{item.attrib['name']}" for item in element.findall("response")]
        assert_fields(spec.fields, element, types)


@VERSIONS
def test_reply_codes_that_code_uses_are_in_the_table(version: Version) -> None:
    replies = {
        name: constant
        for name, constant in version.constants.items()
        if constant.value >= 200 and not name.startswith("frame-")
    }
    for name, constant in replies.items():
        assert constants.REPLY_CODES[name] == constant.value
        assert constants.REPLY_NAMES[constant.value] == name
        assert (constant.value in constants.SOFT_ERRORS) == (constant.error == "soft")
        assert (constant.value in constants.HARD_ERRORS) == (constant.error == "hard")
    assert version.constants["frame-end"].value == constants.FRAME_END
    assert version.constants["frame-min-size"].value == constants.FRAME_MIN_SIZE
    assert version.constants["frame-method"].value == constants.FRAME_METHOD
    assert version.constants["frame-header"].value == constants.FRAME_HEADER
    assert version.constants["frame-body"].value == constants.FRAME_BODY
    assert version.constants["frame-heartbeat"].value == constants.FRAME_HEARTBEAT


def test_every_reply_code_of_the_constants_is_in_a_table() -> None:
    known = set(V0_9_1.constants) | set(V0_9.constants)
    assert set(constants.REPLY_CODES) <= known


def test_sizes_of_the_versions() -> None:
    assert len([owner for owner in V0_9.classes.values() if not owner.extension]) == 12
    assert len([spec for spec in V0_9.methods.values() if not spec.extension]) == 101
    assert len([spec for spec in V0_9_1.methods.values() if not spec.extension]) == 53


def described(spec: MethodSpec) -> tuple[object, ...]:
    return (
        spec.key,
        spec.sync,
        spec.content,
        spec.server_receives,
        spec.client_receives,
        spec.responses,
        [(field.name, TYPE_NAMES[field.type], field.reserved) for field in spec.fields],
    )


def test_extensions_by_rabbitmq() -> None:
    extensions = {spec.name: described(spec) for spec in V0_9_1.methods.values() if spec.extension}
    binding = [
        ("reserved_1", "short", True),
        ("destination", "shortstr", False),
        ("source", "shortstr", False),
        ("routing_key", "shortstr", False),
        ("no_wait", "bit", False),
        ("arguments", "table", False),
    ]
    assert extensions == {
        "connection.blocked": (10 << 16 | 60, False, False, False, True, [], [("reason", "shortstr", False)]),
        "connection.unblocked": (10 << 16 | 61, False, False, False, True, [], []),
        "connection.update-secret": (
            10 << 16 | 70,
            True,
            False,
            True,
            False,
            ["connection.update-secret-ok"],
            [("new_secret", "longstr", False), ("reason", "shortstr", False)],
        ),
        "connection.update-secret-ok": (10 << 16 | 71, True, False, False, True, [], []),
        "exchange.bind": (40 << 16 | 30, True, False, True, False, ["exchange.bind-ok"], binding),
        "exchange.bind-ok": (40 << 16 | 31, True, False, False, True, [], []),
        "exchange.unbind": (40 << 16 | 40, True, False, True, False, ["exchange.unbind-ok"], binding),
        "exchange.unbind-ok": (40 << 16 | 51, True, False, False, True, [], []),
        "basic.nack": (
            60 << 16 | 120,
            False,
            False,
            True,
            True,
            [],
            [("delivery_tag", "longlong", False), ("multiple", "bit", False), ("requeue", "bit", False)],
        ),
        "confirm.select": (85 << 16 | 10, True, False, True, False, ["confirm.select-ok"], [("no_wait", "bit", False)]),
        "confirm.select-ok": (85 << 16 | 11, True, False, False, True, [], []),
    }
    declare = V0_9_1.by_name["exchange.declare"]
    assert {field.name: field.spec_name for field in declare.fields if field.extension} == {
        "auto_delete": "reserved-2",
        "internal": "reserved-3",
    }
    for name in ("basic.ack", "basic.cancel"):
        assert V0_9_1.by_name[name].server_receives
        assert V0_9_1.by_name[name].client_receives
    assert V0_9_1.by_name["basic.cancel-ok"].server_receives


@pytest.mark.parametrize(
    "text",
    [
        "10 open sync server",  # no class before it
        "class a 1 server\n  10 open sync unknown",
        "class a 1 server\n  x open sync server",
        "class a 1 server\n  10 open server | number one",
        "class a 1 server\n  10 open server | short",
        "class a 1 server\n  10 open server\n  10 close server",
        "class a 1 server\n  10 open server\n  11 open server",
        "constant frame-end",
    ],
)
def test_invalid_notation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="x: "):
        parse("x", text)


def test_the_notation() -> None:
    version = parse(
        "x",
        """
constant frame-end 206
+constant no-route 312 soft
class a 1 server client
  properties shortstr one, table two
  10 open sync content server +client -> open-ok closed | short (reserved-1), bit if-unused
      +internal=reserved-2
+class b 2 server
  +11 open-ok client
""",
    )
    spec = version.by_name["a.open"]
    assert version.methods[1 << 16 | 10] is spec
    assert (spec.sync, spec.content, spec.server_receives, spec.client_receives) == (True, True, True, True)
    assert spec.spec_receivers == ["server"]
    assert spec.responses == ["a.open-ok", "a.closed"]
    assert [(field.name, field.spec_name, field.reserved, field.extension) for field in spec.fields] == [
        ("reserved_1", "reserved-1", True, False),
        ("if_unused", "if-unused", False, False),
        ("internal", "reserved-2", False, True),
    ]
    assert [field.name for field in version.classes[1].properties] == ["one", "two"]
    assert version.by_name["b.open-ok"].extension
    assert version.constants["no-route"].error == "soft"
