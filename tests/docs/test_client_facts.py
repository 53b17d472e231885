"""The options, exceptions, properties and calls on the pages about the client exist in the code."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import leveret
from leveret import client, sync
from leveret.client import errors, events, options
from leveret.client._async import amqp09, channel, connection, consumer, publisher, queue, receiver, sender, session
from leveret.client.delivery import Delivery
from leveret.client.files import FileContent
from leveret.client.message import Message
from leveret.client.parameters import MECHANISMS, Parameters
from leveret.client.properties import Properties
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.docs.pages import DOCS, code, page_id, prose, table_rows

PAGES = sorted((DOCS / "client").rglob("*.md"))
CONNECTING = DOCS / "client" / "connecting.md"

# Classes whose calls the pages name, in both APIs.
API_CLASSES: dict[str, tuple[type, ...]] = {
    "connection": (connection.Connection, sync.Connection),
    "channel": (channel.Channel, sync.Channel),
    "session": (session.Session, sync.Session),
    "queue": (queue.Queue, sync.Queue),
    "exchange": (queue.Exchange, sync.Exchange),
    "publisher": (publisher.Publisher, sync.Publisher),
    "consumer": (consumer.Consumer, sync.Consumer),
    "message": (Message,),
    "sender": (sender.Sender, sync.Sender),
    "receiver": (receiver.Receiver, sync.Receiver),
    "delivery": (Delivery,),
    "file": (FileContent,),
}
# Classes of the pages about other protocols that replace those above.
PROTOCOL_CLASSES: dict[str, dict[str, tuple[type, ...]]] = {
    "amqp-0-9.md": {
        "connection": (connection.Amqp09Connection, sync.Amqp09Connection),
        "channel": (amqp09.Amqp09Channel, sync.Amqp09Channel),
    },
    "amqp-1-0.md": {"connection": (connection.Amqp10Connection, sync.Amqp10Connection)},
}
# Of the pages about other clients the right column is ours.
GUIDES = ("from-pika.md", "from-aio-pika.md")
_CALL = re.compile(rf"\b({'|'.join(API_CLASSES)})\.(\w+)\(([^()]*)\)?")
NOT_IN_BOTH = {("consumer", "next"), ("receiver", "next")}


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def classes_of(page: Path) -> dict[str, tuple[type, ...]]:
    """The classes whose calls a page names."""
    return API_CLASSES | PROTOCOL_CLASSES.get(page.name, {})


def table(page: Path, head: str) -> list[list[str]]:
    """The rows of the table whose first cell of the head is this."""
    found: list[list[str]] = []
    within = False
    for line in prose(page).splitlines():
        if not line.startswith("|"):
            within = False
        elif line.startswith(f"| {head} |"):
            within = True
        elif within and not re.fullmatch(r"[|\s:-]+", line):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    assert found, f"{page_id(page)} has no table of {head}"
    return found


def test_every_option_is_documented_with_its_default() -> None:
    documented = {names(row[0])[0]: names(row[1])[0] for row in table(CONNECTING, "option")}
    defaults = {}
    for field in fields(Parameters):
        value: Any = field.default
        if value is MISSING:
            factory = field.default_factory
            assert callable(factory)
            value = factory()
        defaults[field.name] = f'"{value}"' if isinstance(value, str) else repr(value)
    assert documented == defaults


def test_every_synonym_is_documented() -> None:
    documented = {name.partition("=")[0]: set(names(row[1])) for row in table(CONNECTING, "name") for name in names(row[0])}
    known = {name: {option.target} for name, option in options._SYNONYMS.items()}
    known["ssl_options"] = set(options._SSL_OPTIONS.values())
    known["verify"] = {"verify"}
    assert documented == known


def test_every_mechanism_is_documented() -> None:
    assert [names(row[0])[0] for row in table(CONNECTING, "mechanism")] == list(MECHANISMS)


def test_the_tree_of_exceptions() -> None:
    documented = {names(row[0])[0]: set(names(row[1])) for row in table(DOCS / "client" / "errors.md", "exception")}
    known = {
        name: {base.__name__ for base in kind.__bases__}
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.Error)
    }
    assert documented == known
    assert all(hasattr(client, name) for name in known)
    assert leveret.Error is errors.Error


def test_every_property_is_documented() -> None:
    rows = table(DOCS / "client" / "messages.md", "property")
    assert [names(row[0])[0] for row in rows] == [field.name for field in fields(Properties)]


def test_every_attribute_of_a_message_is_documented() -> None:
    rows = table(DOCS / "client" / "messages.md", "attribute")
    documented = {name.removesuffix("()") for row in rows for name in names(row[0])}
    public = {name for name in dir(Message) if not name.startswith("_")}
    calls = {"ack", "nack", "reject", "process", "respond"}
    assert documented == public - calls - {"generation"}
    rows = table(DOCS / "client" / "messages.md", "call")
    settling = {call for row in rows for call in re.findall(r"message\.(\w+)", row[0])}
    assert settling == calls - {"respond"}


def test_every_event_is_documented_with_its_attributes() -> None:
    documented = {}
    for row in table(DOCS / "client" / "reconnecting.md", "event"):
        for name, attributes in re.findall(r"`(\w+)\(([\w, ]*)\)`", row[0]):
            documented[name] = attributes.split(", ") if attributes else []
    kinds: list[type[Any]] = events.Event.__subclasses__()
    known = {kind.__name__: [field.name for field in fields(kind)] for kind in kinds}
    assert documented == known


def test_every_option_of_a_link_is_documented() -> None:
    page = DOCS / "client" / "amqp-1-0.md"
    for kind in ("sender", "receiver"):
        documented = {name for row in table(page, f"option of a {kind}") for name in names(row[0])}
        parameters = inspect.signature(getattr(session.Session, kind)).parameters
        assert documented == parameters.keys() - {"self", "address"}


def ours(page: Path) -> list[str]:
    """Code on a page that is about this client."""
    if page.name not in GUIDES:
        return list(code(page))
    # Cells of right columns, and all text outside of tables.
    text = "\n".join(line for line in prose(page).splitlines() if not line.startswith("|"))
    return [name for row in table_rows(page) for name in names(row[1])] + names(text)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_calls_exist_with_their_arguments(page: Path) -> None:
    for text in ours(page):
        for owner, name, arguments in _CALL.findall(text):
            faces = classes_of(page)[owner]
            if (owner, name) in NOT_IN_BOTH:
                faces = faces[-1:]
            for face in faces:
                assert hasattr(face, name), f"`{text}`: {face.__qualname__} of {face.__module__} has no {name}"
                keywords = re.findall(r"(\w+)=", arguments)
                parameters = inspect.signature(getattr(face, name)).parameters
                if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                    assert set(keywords) <= parameters.keys(), f"`{text}`: {name} has no such argument"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_attributes_and_methods_exist(page: Path) -> None:
    """A name that looks like an AMQP method is one, or an attribute of the client's object with that name."""
    classes = {name.split(".")[0] for name in V0_9_1.by_name} | API_CLASSES.keys()
    for text in ours(page):
        owner, _, name = text.partition(".")
        if (
            re.fullmatch(r"[a-z]+\.[a-z_-]+", text)
            and owner in classes
            and text not in V0_9_1.by_name
            and text not in V0_9.by_name
        ):
            assert owner in API_CLASSES, f"`{text}`: there is no such method"
            for face in classes_of(page)[owner]:
                assert hasattr(face, name), f"`{text}`: {face.__qualname__} of {face.__module__} has no {name}"


def test_the_guides_have_what_other_pages_promise() -> None:
    exceptions = {name for name, kind in vars(errors).items() if inspect.isclass(kind)}
    for guide in GUIDES:
        head = guide.removeprefix("from-").removesuffix(".md")
        tables = table(DOCS / "client" / guide, head)
        for name in {name for row in tables for name in names(row[1]) if re.fullmatch("[A-Z][A-Za-z]+", name)}:
            assert name in exceptions | {"None", "True", "False", "TimeoutError", "Blocked"}, name
