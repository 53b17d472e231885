"""The notation of the method tables, and its parser.

A line begins with the kind of declaration; a line indented by six or more spaces continues the previous one.

    constant content-too-large 311 soft        a reply code with its class, or another number
    class basic 60 server client               a class, its index, and the peers that implement it
      properties shortstr content-type ...     its content properties
      10 qos sync server -> qos-ok | long prefetch-size, short prefetch-count, bit global
                                               a method: index, name, `sync` and `content`, receivers, responses,
                                               and fields by type

A field group is a type followed by names. `(name)` is reserved. `+` marks an extension, by RabbitMQ in 0-9-1 and by Qpid in
0-9. `+internal=reserved-3` is a field that the specification reserves under another name.
"""

from __future__ import annotations

from leveret.wire.amqp0.model import TYPE_NAMES, ClassSpec, Constant, FieldSpec, MethodSpec, Version


def parse(name: str, text: str) -> Version:
    """Return the version that `text` describes.

    Raises:
        ValueError: a line is invalid. The message contains the line.
    """
    version = Version(name)
    current: ClassSpec | None = None
    for line in _logical_lines(text):
        try:
            extension = line.startswith("+")
            words = line.lstrip("+").split()
            if words[0] == "constant":
                error = words[3] if len(words) > 3 else ""
                version.constants[words[1]] = Constant(words[1], int(words[2]), error, extension)
            elif words[0] == "class":
                current = ClassSpec(words[1], int(words[2]), words[3:], extension)
                version.classes[current.class_id] = current
            elif current is None:
                raise ValueError("a class must come first")
            elif words[0] == "properties":
                current.properties = _fields(line.removeprefix("properties"))
            else:
                method = _method(line, current)
                if method.key in version.methods or method.name in version.by_name:
                    raise ValueError("declared twice")
                current.methods.append(method)
                version.methods[method.key] = method
                version.by_name[method.name] = method
        except (ValueError, IndexError) as error:
            raise ValueError(f"{name}: {error}: {line}") from error
    version.responses = _responses(version)
    return version


def _responses(version: Version) -> frozenset[str]:
    """Return the names of methods that are only sent as responses.

    `file.stage` follows `file.open-ok`, but is not a response.
    """
    answers = {name for spec in version.methods.values() for name in spec.responses}
    return frozenset(name for spec in version.methods.values() if spec.name not in answers for name in spec.responses)


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(" " * 6):
            lines[-1] += " " + line.strip()
        elif line.strip():
            lines.append(line.strip())
    return lines


def _method(line: str, owner: ClassSpec) -> MethodSpec:
    extension = line.startswith("+")
    head, _, fields = line.removeprefix("+").partition("|")
    head, _, responses = head.partition("->")
    index, name, *words = head.split()
    receivers = {word.removeprefix("+") for word in words} & {"server", "client"}
    unknown = set(words) - {"sync", "content", "server", "client", "+server", "+client"}
    if unknown:
        raise ValueError(f"unknown words {sorted(unknown)}")
    return MethodSpec(
        name=f"{owner.name}.{name}",
        class_id=owner.class_id,
        method_id=int(index),
        sync="sync" in words,
        content="content" in words,
        server_receives="server" in receivers,
        client_receives="client" in receivers,
        fields=_fields(fields),
        responses=[f"{owner.name}.{response}" for response in responses.split()],
        spec_receivers=[word for word in words if word in ("server", "client")],
        extension=extension,
    )


def _fields(text: str) -> list[FieldSpec]:
    fields: list[FieldSpec] = []
    for group in text.split(","):
        if not group.strip():
            continue
        type_name, *names = group.split()
        if not names:
            raise ValueError(f"a type without a field: {type_name}")
        for word in names:
            reserved = word.startswith("(")
            extension = word.startswith("+")
            name, _, spec_name = word.strip("(+)").partition("=")
            fields.append(
                FieldSpec(name.replace("-", "_"), spec_name or name, TYPE_NAMES.index(type_name), reserved, extension)
            )
    return fields
