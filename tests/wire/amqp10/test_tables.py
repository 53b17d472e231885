"""The tables against the specification, the generated modules against the tables, and the notation."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from leveret.wire.amqp10 import codes, constants
from leveret.wire.amqp10.notation import parse
from leveret.wire.amqp10.specs import COMPOSITES, TYPES
from tests.wire.amqp10.strategies import CLASSES

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT.parent / "shared" / "spec" / "amqp-1-0"
NAMESPACE = "{http://www.amqp.org/schema/amqp.xsd}"
needs_specification = pytest.mark.skipif(not FOLDER.is_dir(), reason="the specification is not here")


def elements(tag: str, *files: str) -> list[Any]:
    roots = [ElementTree.parse(FOLDER / f"{name}.xml").getroot() for name in files]
    return [
        element
        for root in roots
        for section in root.iter(f"{NAMESPACE}section")
        for element in section.findall(NAMESPACE + tag)
    ]


def provides_of(element: Any) -> list[str]:
    return [name.strip() for name in element.get("provides", "").split(",") if name.strip()]


def descriptor_of(element: Any) -> tuple[str, int]:
    descriptor = element.find(f"{NAMESPACE}descriptor")
    if descriptor is None:
        return "", 0
    domain, number = descriptor.get("code").split(":")
    return descriptor.get("name"), int(domain, 16) << 32 | int(number, 16)


@needs_specification
def test_composite_types() -> None:
    found = {}
    for element in elements("type", "transport", "messaging", "transactions", "security"):
        if element.get("class") != "composite":
            continue
        fields = [
            (
                field.get("name"),
                field.get("type"),
                field.get("requires", ""),
                field.get("mandatory") == "true",
                field.get("multiple") == "true",
                field.get("default"),
            )
            for field in element.findall(f"{NAMESPACE}field")
        ]
        found[element.get("name")] = (*descriptor_of(element), provides_of(element), fields)
    assert found == {
        spec.name: (
            spec.symbol,
            spec.descriptor,
            spec.provides,
            [
                (field.spec_name, field.type, field.requires, field.mandatory, field.multiple, field.default_text)
                for field in spec.fields
            ],
        )
        for spec in TYPES.composites.values()
    }


@needs_specification
def test_restricted_types() -> None:
    found = {}
    for element in elements("type", "transport", "messaging", "transactions", "security"):
        if element.get("class") == "restricted":
            choices = {choice.get("name"): choice.get("value") for choice in element.findall(f"{NAMESPACE}choice")}
            found[element.get("name")] = (*descriptor_of(element), element.get("source"), provides_of(element), choices)
    assert found == {
        spec.name: (
            spec.symbol,
            spec.descriptor,
            spec.source,
            spec.provides,
            {name: str(value).lower() if spec.base == "boolean" else str(value) for name, value in spec.choices.items()},
        )
        for spec in TYPES.restricted.values()
    }


@needs_specification
def test_definitions() -> None:
    found = {
        element.get("name").lower(): int(element.get("value"))
        for element in elements("definition", "transport", "messaging", "transactions", "security")
    }
    assert found == TYPES.definitions


@needs_specification
def test_format_codes() -> None:
    widths = {("fixed", str(width)): width for width in (0, 1, 2, 4, 8, 16)}
    for category in ("variable", "compound", "array"):
        widths[category, "1"] = codes.ONE_BYTE_SIZE
        widths[category, "4"] = codes.FOUR_BYTE_SIZE
    found = {
        int(encoding.get("code"), 16): (element.get("name"), widths[encoding.get("category"), encoding.get("width")])
        for element in elements("type", "types")
        for encoding in element.findall(f"{NAMESPACE}encoding")
    }
    assert found == {code: (name, codes.WIDTHS[code]) for code, name in codes.TYPES.items()}


def test_generated_modules_match_the_tables() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        generated = import_module("generate_amqp10").generated()
    finally:
        sys.path.remove(str(ROOT / "tools"))
    assert len(generated) == 6
    for path, text in generated.items():
        assert path.read_text(encoding="utf-8") == text, f"run tools/generate_amqp10.py: {path.name}"


def test_every_composite_type_has_a_class() -> None:
    assert len(CLASSES) == len(COMPOSITES) == 33
    assert constants.LINK_STOLEN == "amqp:link:stolen"
    assert constants.ROLE_RECEIVER is True
    assert constants.SASL_CODE_SYS_TEMP == 4


@pytest.mark.parametrize(
    "text",
    [
        "composite a",
        "composite a x",
        "composite a 0x10 | uint",
        "composite a 0x10 | nothing field",
        "composite a 0x10 | uint field=x",
        "composite a 0x10 | boolean field=1",
        "composite a 0x10\ncomposite a 0x11",
        "restricted a uint | one",
        "restricted a nothing",
        "define a",
        "class a",
    ],
)
def test_invalid_notation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a"):
        parse([text])


def test_the_notation() -> None:
    types = parse(
        [
            """
define size 512
restricted mode ubyte | first=0 second=1
restricted settings fields
restricted fields map
composite open 0x10 -> frame outcome | uint size!=7, mode how=second,
    *(source) from, symbol names[]! others[], settings more
"""
        ]
    )
    spec = types.composites["open"]
    assert (spec.descriptor, spec.symbol, spec.provides) == (16, "amqp:open:list", ["frame", "outcome"])
    assert spec.class_name == "Open"
    assert [
        (
            field.name,
            field.type,
            field.requires,
            field.mandatory,
            field.multiple,
            field.default,
            field.choices,
            field.symbols,
        )
        for field in spec.fields
    ] == [
        ("size", "uint", "", True, False, 7, [], False),
        ("how", "mode", "", False, False, 1, [0, 1], False),
        ("from", "*", "source", False, False, None, [], False),
        ("names", "symbol", "", True, True, (), [], False),
        ("others", "symbol", "", False, True, (), [], False),
        ("more", "settings", "", False, False, None, [], True),
    ]
    assert types.definitions == {"size": 512}
    assert types.descriptors == {"amqp:open:list": 16}
