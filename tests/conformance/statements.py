"""The normative statements of the specifications' XML, extracted mechanically.

The lists of rules (`rules_*.txt`) are compared with them when the specifications are there, so that the lists are complete
by construction. A statement of AMQP 0-9-1 or 0-9 is one of these; PLACE is the path of class, method, field or domain:

PLACE.RULE                  a `<rule>`
PLACE.RULE.reply-code       the reply code that the rule names for its violation
CONSTANT.constant           a constant: its value, and for a reply code its scope
PLACE.chassis.SIDE          the side that must implement a class or method
METHOD.response.METHOD      an answer to a synchronous method
METHOD.content              the method carries a content
FIELD.reserved              the field is no longer used
PLACE.assert.CHECK          a constraint on the value of a field or domain
CLASS.grammar...            an alternative of the grammar of a class
PLACE.text                  a sentence of a description that has one of KEYWORDS; its number in its place counts
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

KEYWORDS = re.compile(
    r"\b(must|shall|should|may not|may only|can only|can not|cannot|not allowed|not valid|ignored?|never|only|will"
    r"|exception|raises?|if|when|zero)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_NAMED = ("class", "method", "field", "domain", "rule", "constant")
_TERMINAL = re.compile(r"([CS]):([A-Za-z-]+)")


def sentences(text: str) -> list[str]:
    return _SENTENCE.split(" ".join(text.split()))


def name_of(element: ElementTree.Element) -> str:
    return (element.get("name") or "").replace(" ", "-")


def statements(element: ElementTree.Element, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield all statements below an element of AMQP 0-9-1 or 0-9, in order: the path, and the text of the statement."""
    counted = 0
    for child in element:
        path = (*above, name_of(child)) if child.tag in _NAMED else above
        place = ".".join(path)
        if child.tag == "rule":
            yield place
            if (code := child.get("on-failure")) is not None:
                yield f"{place}.reply-code {code}"
            continue
        if child.tag == "constant":
            yield f"{place}.constant {child.get('value')} {child.get('class') or ''}".rstrip()
        elif child.tag == "chassis":
            yield f"{place}.chassis.{name_of(child)} {child.get('implement')}"
        elif child.tag == "response":
            yield f"{place}.response.{name_of(child)}"
        elif child.tag == "assert":
            values = [value for key, value in child.attrib.items() if key != "check"]
            yield " ".join([f"{place}.assert.{child.get('check')}", *values])
        elif child.tag == "doc":
            if child.get("type") == "grammar":
                yield from (f"{place}.grammar{name}" for name in productions(place, child.text or ""))
            elif child.get("type") is None:
                for sentence in sentences(child.text or ""):
                    found = dict.fromkeys(keyword.lower() for keyword in KEYWORDS.findall(sentence))
                    if found:
                        counted += 1
                        yield f"{place}.text {counted} {','.join(found)}"
            continue
        if child.tag == "field" and child.get("reserved"):
            yield f"{place}.reserved"
        if child.tag == "method" and child.get("content"):
            yield f"{place}.content"
        yield from statements(child, path)


def productions(name: str, grammar: str) -> Iterator[str]:
    """Return the names of all alternatives of a class's grammar.

    An alternative of the class's own production is called after its first element, C:DECLARE client-declare; a production
    of another name, and its alternatives if it has several, after that name.
    """
    words = grammar.replace("(", " ( ").replace(")", " ) ").split()
    starts = [at - 1 for at, word in enumerate(words) if word == "="]
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        production = "" if words[start] == name else f".{words[start]}"
        depth = 0
        alternatives = [words[start + 2]]
        for at in range(start + 2, end):
            depth += {"(": 1, ")": -1}.get(words[at], 0)
            if words[at] == "/" and depth == 0:
                alternatives.append(words[at + 1])
        for first in alternatives:
            yield production + (f".{alternative(first)}" if len(alternatives) > 1 else "")


def alternative(first: str) -> str:
    terminal = _TERMINAL.fullmatch(first)
    if terminal is None:
        return first.strip("*%[]").lower()
    side = {"C": "client", "S": "server"}[terminal[1]]
    return f"{side}-{terminal[2].lower()}"


# AMQP 1.0: the keywords that the specification writes in capitals, and normative phrases without them.
CAPITALS = re.compile(r"\b(?:MUST|SHOULD)(?:\s+NOT)?\b")
LOWER = re.compile(
    r"\b(must not|must|should not|should|shall|may not|may only|can only|can not|cannot|is an error|not allowed|not valid"
    r"|not permitted|never|(?:is|are|be) ignored|required|illegal|invalid|malformed)\b",
    re.IGNORECASE,
)


def tag_of(element: ElementTree.Element) -> str:
    return element.tag.rsplit("}", 1)[-1]


def _below(element: ElementTree.Element, path: tuple[str, ...]) -> tuple[str, ...]:
    kind = tag_of(element)
    name = element.get("title") if kind == "doc" else element.get("name") if kind in ("section", "type", "field") else ""
    return (*path, name) if name else path


def capitals(element: ElementTree.Element, above: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """The keywords in capitals below an element of AMQP 1.0, each with the path of its place."""
    path = _below(element, above)

    def found(text: str | None) -> Iterator[tuple[str, str]]:
        return (("/".join(path), " ".join(keyword.split())) for keyword in CAPITALS.findall(text or ""))

    yield from found(element.text)
    for child in element:
        yield from capitals(child, path)
        yield from found(child.tail)


def lower(element: ElementTree.Element, above: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """The sentences below an element of AMQP 1.0 that are normative without capitals: their place and their keywords."""
    path = _below(element, above)
    if tag_of(element) in ("p", "dd", "li"):
        for sentence in sentences("".join(element.itertext())):
            found = [keyword for keyword in LOWER.findall(sentence) if not CAPITALS.fullmatch(keyword)]
            if found:
                yield "/".join(path), ",".join(dict.fromkeys(keyword.lower().replace(" ", "-") for keyword in found))
        return
    for child in element:
        yield from lower(child, path)


def facts(part: str, element: ElementTree.Element, type: str = "") -> Iterator[str]:
    """The facts of the types of a part of AMQP 1.0: mandatory fields, defaults, the values of restricted types."""
    kind = tag_of(element)
    name = element.get("name") or ""
    if kind == "type":
        type = name
    if kind == "field" and element.get("mandatory") == "true":
        yield f"{part}.{type}.{name}.mandatory"
    if kind == "field" and element.get("default") is not None:
        yield f"{part}.{type}.{name}.default {element.get('default')}"
    if kind == "choice":
        yield f"{part}.{type}.{name}.choice {element.get('value')}"
    for child in element:
        yield from facts(part, child, type)
