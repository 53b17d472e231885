"""SASL mechanisms: the offer, and the parsing of responses."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.security.mechanisms import Context, Failure, NeedsPassword, Success, create, offered

ALL = ["PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS"]
SUBJECT = ((("countryName", "DE"),), (("organizationName", "Example, Inc."),), (("commonName", "shop"),))


def decode(octets: bytes) -> dict[str, Any]:
    """Decode a field table in place of the wire's decoder."""
    if octets == b"bad":
        raise ValueError("bad")
    pairs = (part.partition("=") for part in octets.decode("latin-1").split(";"))
    return {key: value if equals else 1 for key, equals, value in pairs}


def step(name: str, response: bytes, **facts: Any) -> Any:
    mechanism = create(name, ALL, Context(**facts))
    assert mechanism is not None
    return mechanism.step(response)


# Offered mechanisms


def test_offered_mechanisms_depend_on_the_connection() -> None:
    assert offered(ALL, Context()) == ["PLAIN"]
    assert offered(ALL, Context(decode_table=decode)) == ["PLAIN", "AMQPLAIN"]
    assert offered(ALL, Context(certificate={"subject": SUBJECT})) == ["PLAIN", "EXTERNAL"]
    assert offered(ALL, Context(certificate={})) == ["PLAIN"]
    assert offered(ALL, Context(anonymous_user="guest")) == ["PLAIN", "ANONYMOUS"]


def test_mechanisms_are_offered_in_the_configured_order() -> None:
    context = Context(decode_table=decode, anonymous_user="guest")
    assert offered(["ANONYMOUS", "AMQPLAIN", "PLAIN"], context) == ["ANONYMOUS", "AMQPLAIN", "PLAIN"]


@pytest.mark.parametrize("name", ["AMQPLAIN", "EXTERNAL", "ANONYMOUS", "SCRAM-SHA-256", "", "plain"])
def test_mechanisms_that_were_not_offered_are_not_created(name: str) -> None:
    assert create(name, ["PLAIN"], Context(decode_table=decode, anonymous_user="guest")) is None


# PLAIN


@pytest.mark.parametrize(
    ("response", "name", "password"),
    [
        (b"\0alice\0secret", "alice", b"secret"),
        (b"alice\0alice\0secret", "alice", b"secret"),
        (b"\0alice\0", "alice", b""),
        # A token as password may have no name.
        (b"\0\0token", "", b"token"),
        (b"\0\xc3\xa4lice\0\xff", "älice", b"\xff"),
    ],
)
def test_plain(response: bytes, name: str, password: bytes) -> None:
    assert step("PLAIN", response) == NeedsPassword(name, password)


@pytest.mark.parametrize(
    "response", [b"", b"alice", b"\0alice", b"\0alice\0a\0b", b"\0\0", b"\0\xff\0secret", b"bob\0alice\0secret"]
)
def test_plain_refuses(response: bytes) -> None:
    assert isinstance(step("PLAIN", response), Failure)


def test_passwords_are_not_in_the_repr() -> None:
    assert "secret" not in repr(step("PLAIN", b"\0alice\0secret"))


# AMQPLAIN


def test_amqplain() -> None:
    outcome = step("AMQPLAIN", b"LOGIN=alice;PASSWORD=secret", decode_table=decode)
    assert outcome == NeedsPassword("alice", b"secret")


def test_amqplain_accepts_bytes() -> None:
    outcome = step("AMQPLAIN", b"", decode_table=lambda octets: {"LOGIN": b"alice", "PASSWORD": bytearray(b"x")})
    assert outcome == NeedsPassword("alice", b"x")


@pytest.mark.parametrize(
    "response", [b"bad", b"LOGIN=alice", b"PASSWORD=x", b"LOGIN;PASSWORD=x", b"LOGIN=a;PASSWORD", b"LOGIN=;PASSWORD="]
)
def test_amqplain_refuses(response: bytes) -> None:
    assert isinstance(step("AMQPLAIN", response, decode_table=decode), Failure)


# EXTERNAL


@pytest.mark.parametrize(("setting", "name"), [("common-name", "shop"), ("subject", "CN=shop,O=Example\\, Inc.,C=DE")])
def test_external_is_the_certificates_name(setting: str, name: str) -> None:
    facts = {"certificate": {"subject": SUBJECT}, "external_name": setting}
    assert step("EXTERNAL", b"", **facts) == Success(name)
    assert step("EXTERNAL", name.encode(), **facts) == Success(name)
    assert isinstance(step("EXTERNAL", b"root", **facts), Failure)


@pytest.mark.parametrize(
    "subject",
    [
        ((("organizationName", "Example"),),),
        ((("commonName", "a"),), (("commonName", "b"),)),
        ((("commonName", ""),),),
        (),
    ],
)
def test_external_needs_exactly_one_common_name(subject: Any) -> None:
    assert isinstance(step("EXTERNAL", b"", certificate={"subject": subject, "x": 1}), Failure)


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        ("#a", "\\#a"),
        (" a ", "\\ a\\ "),
        (" ", "\\ "),
        ('a+b"c\\d<e>f;g', 'a\\+b\\"c\\\\d\\<e\\>f\\;g'),
        ("a\0b", "a\\00b"),
    ],
)
def test_subjects_are_escaped(value: str, escaped: str) -> None:
    facts = {"certificate": {"subject": ((("commonName", value), ("userId", "7")),)}, "external_name": "subject"}
    assert step("EXTERNAL", b"", **facts) == Success(f"CN={escaped}+UID=7")


# ANONYMOUS


def test_anonymous_is_the_configured_user() -> None:
    assert step("ANONYMOUS", b"trace", anonymous_user="visitor") == Success("visitor")
