"""The notation of the tables of types, and its parser.

A line begins with the kind of declaration; a line indented by four spaces or more continues the previous one.

    define min-max-frame-size 512              a named number
    restricted role boolean | sender=false receiver=true
                                               a restricted type, its source, and its named values if it lists them
    restricted data 0x75 binary -> section     one with a descriptor; the roles that it provides follow the arrow
    composite flow 0x13 -> frame | uint incoming-window!, boolean drain=false echo=false, symbol capabilities[]
                                               a composite type, its descriptor, and its fields by type

`!` marks a mandatory field, `[]` one with several values, `=` its default. `*(source)` is any type that provides
"source"; `symbol(error-condition)` is any symbol, including those that types with this role list.
"""

from __future__ import annotations

from leveret.wire.amqp10 import model
from leveret.wire.amqp10.model import KINDS, CompositeSpec, FieldSpec, RestrictedSpec, Types
from leveret.wire.amqp10.values import Value


def parse(texts: list[str]) -> Types:
    """Return the types in the tables. Raises ValueError, with the line, for an invalid declaration."""
    types = Types()
    for text in texts:
        for line in _logical_lines(text):
            try:
                _declare(types, line)
            except (ValueError, IndexError) as error:
                raise ValueError(f"{error}: {line}") from error
    for restricted in types.restricted.values():
        _resolve_restricted(types, restricted)
    for composite in types.composites.values():
        types.descriptors[composite.symbol] = composite.descriptor
        for field in composite.fields:
            try:
                _resolve_field(types, field)
            except (ValueError, KeyError) as error:
                raise ValueError(f"{composite.name}: {field.spec_name}: {error}") from error
    return types


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(" " * 4):
            lines[-1] += " " + line.strip()
        elif line.strip():
            lines.append(line.strip())
    return lines


def _declare(types: Types, line: str) -> None:
    declaration, _, content = line.partition(" | ")
    words, _, provided = declaration.partition(" -> ")
    what, name, *rest = words.split()
    provides = provided.split()
    if name in (types.definitions if what == "define" else {**types.composites, **types.restricted}):
        raise ValueError("declared twice")
    if what == "define":
        types.definitions[name] = int(rest[0])
    elif what == "composite":
        types.composites[name] = CompositeSpec(name, int(rest[0], 16), provides, _fields(content))
    elif what == "restricted":
        descriptor = int(rest.pop(0), 16) if rest[0].startswith("0x") else 0
        choices: dict[str, Value] = {}
        for choice in content.split():
            key, equals, value = choice.partition("=")
            if not equals:
                raise ValueError("expected NAME=VALUE as a choice")
            choices[key] = value
        types.restricted[name] = RestrictedSpec(name, rest[0], descriptor, provides, choices)
    else:
        raise ValueError("expected define, composite or restricted")


def _fields(content: str) -> list[FieldSpec]:
    fields: list[FieldSpec] = []
    for group in content.split(","):
        words = group.split()
        if not words:
            continue
        if len(words) == 1:
            raise ValueError("expected a type and a name of a field")
        type, _, requires = words[0].removesuffix(")").partition("(")
        for word in words[1:]:
            name, equals, default = word.partition("=")
            mandatory = name.endswith("!")
            name = name.removesuffix("!")
            multiple = name.endswith("[]")
            fields.append(
                FieldSpec(name.removesuffix("[]"), type, requires, mandatory, multiple, default if equals else None)
            )
    return fields


def _resolve_restricted(types: Types, restricted: RestrictedSpec) -> None:
    """Find the underlying primitive type, and convert the choices to its values."""
    while restricted.base in types.restricted:
        restricted.base = types.restricted[restricted.base].source
    if restricted.base not in KINDS:
        raise ValueError(f"{restricted.name}: type {restricted.base} does not exist")
    kind = KINDS[restricted.base]
    for name, value in restricted.choices.items():
        restricted.choices[name] = _constant(kind, str(value))
    if restricted.descriptor:
        restricted.symbol = f"amqp:{restricted.name}:{restricted.base}"
        types.descriptors[restricted.symbol] = restricted.descriptor


def _resolve_field(types: Types, field: FieldSpec) -> None:
    if field.type in types.composites:
        field.kind = model.COMPOSITE
        return
    if field.type not in types.restricted:
        field.kind = KINDS[field.type]
        if field.default_text is not None:
            field.default = _constant(field.kind, field.default_text)
        return
    restricted = types.restricted[field.type]
    field.kind = KINDS[restricted.base]
    field.choices = list(restricted.choices.values())
    field.symbols = field.type == "fields" or restricted.source == "fields"
    text = field.default_text
    if text is not None:
        field.default = restricted.choices[text] if restricted.choices else _constant(field.kind, text)


def _constant(kind: int, text: str) -> Value:
    """Convert the text of a value in a table."""
    if kind == model.BOOLEAN:
        if text not in ("true", "false"):
            raise ValueError(f"{text} is not a boolean")
        return text == "true"
    return text if kind == model.SYMBOL else int(text)
