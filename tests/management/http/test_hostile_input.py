"""Input of attackers: bodies, names and parameters that break parsers, lists or the broker's event loop."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import pytest

from leveret.management.http.multipart import read_form
from leveret.management.structs import check_arguments
from tests.management.http.client import HttpBroker

LISTS = ("/queues", "/exchanges", "/bindings", "/overview", "/vhosts", "/global-parameters", "/definitions")


def check_lists(api: HttpBroker) -> None:
    """Check that no object makes the answers fail that have it."""
    for path in LISTS:
        assert api("GET", path).status == 200, path


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("depth", [100, 900, 5000])
def test_deep_values(api: HttpBroker, depth: int) -> None:
    """A list that is nested as deep as the parser allows would end the encoding of every list with it."""
    value = nested(depth)
    for method, path, body in (
        ("PUT", "/queues/%2F/deep", b'{"arguments":{"a":%s}}'),
        ("PUT", "/exchanges/%2F/deep", b'{"arguments":{"a":%s}}'),
        ("POST", "/bindings/%2F/e/amq.topic/e/amq.fanout", b'{"routing_key":"deep","arguments":{"a":%s}}'),
        ("PUT", "/global-parameters/deep", b'{"value":%s}'),
        ("PUT", "/policies/%2F/deep", b'{"pattern":"a","definition":{"max-length":%s}}'),
        ("PUT", "/vhosts/deep", b'{"tags":%s}'),
        ("POST", "/definitions", b'{"queues":[{"vhost":"/","name":"deep","arguments":{"a":%s}}]}'),
    ):
        reply = api(method, path, raw=body % value, headers={"Content-Type": "application/json"})
        assert reply.status == 400, (path, reply.status, reply.content[:200])
    check_lists(api)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"a": 1 << 63}, "has the integer 9223372036854775808; expected 64 bits"),
        ({"a": [{"b": -(1 << 70)}]}, "expected 64 bits"),
        ({"a": [0] * 10_000}, "has too many values; expected at most 10000"),
        ({"\u00fc" * 128: 1}, "has a key of 256 bytes; expected at most 255"),
    ],
)
def test_large_arguments(api: HttpBroker, arguments: dict[str, Any], reason: str) -> None:
    for method, path in (
        ("PUT", "/queues/%2F/large"),
        ("PUT", "/exchanges/%2F/large"),
        ("POST", "/bindings/%2F/e/amq.topic/e/amq.fanout"),
    ):
        reply = api(method, path, {"arguments": arguments})
        assert (reply.status, reply.json["error"]) == (400, "bad_request"), reply.content[:200]
        assert "'arguments' has " in reply.json["reason"] and reply.json["reason"].endswith(reason)


def test_many_arguments(api: HttpBroker) -> None:
    """A request that is too large for the control socket is the client's fault."""
    arguments = {f"argument-{number}": 1 for number in range(60_000)}
    reply = api("PUT", "/queues/%2F/many", {"arguments": arguments})
    assert (reply.status, reply.json["error"]) == (400, "bad_request")


def test_much_text() -> None:
    check_arguments({"a": "x" * 65536, "b": ["x" * 65536]})
    with pytest.raises(ValueError, match="'arguments' has too much text; expected at most 131072 characters"):
        check_arguments({"a": "x" * 65536, "b": ["x" * 65536, "x"]})


def test_long_routing_keys(api: HttpBroker) -> None:
    path = "/bindings/%2F/e/amq.topic/e/amq.fanout"
    assert api("POST", path, {"routing_key": "k" * 255}).status == 201
    reply = api("POST", path, {"routing_key": "\u00fc" * 128})
    assert (reply.status, reply.json["reason"].partition(": ")[2]) == (
        400,
        "the routing key has 256 bytes; expected at most 255",
    )
    assert api("DELETE", f"{path}/{'k' * 255}").status == 204


@pytest.mark.parametrize(
    "body",
    [
        b'{"durable":NaN}',
        b'{"arguments":{"a":1e999}}',
        b'{"arguments":{"a":' + b"9" * 5000 + b"}}",
        b'{"arguments":{"a":"\\ud800"}}',
    ],
)
def test_values_that_json_does_not_have(api: HttpBroker, body: bytes) -> None:
    reply = api("PUT", "/queues/%2F/invalid", raw=body)
    assert (reply.status, reply.json["reason"]) == (400, "not_json")


@pytest.mark.parametrize("path", ["/queues/%2F/%ff%fe", "/vhosts/%ff", "/users/%ff", "/global-parameters/%ed%a0%80"])
def test_names_that_are_not_utf8(api: HttpBroker, path: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        reply = api(method, path, {"value": 1, "password": "x", "tags": ""})
        assert (reply.status, reply.json["reason"]) == (400, "a name in the path is not UTF-8")


@pytest.mark.parametrize(
    "path",
    [
        "/queues/%2F/../..",
        "/../api/whoami",
        "/%2e%2e/whoami",
        "//whoami",
        "/queues/..%2f..%2fetc",
        "/whoami%00",
        "/whoami;x",
    ],
)
def test_path_tricks(api: HttpBroker, path: str) -> None:
    assert api("GET", path).status == 404


LOGIN = b"Host: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
PUT = b"PUT /api/queues/%2F/raw HTTP/1.1\r\n" + LOGIN


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /api/whoami HTTP/1.1\r\n" + LOGIN + b"".join(b"X-%d: y\r\n" % number for number in range(20_000)) + b"\r\n",
        PUT + b"Content-Length: -5\r\n\r\n",
        PUT + b"Content-Length: 99999999999999999999\r\n\r\n",
        PUT + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        PUT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: gzip\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 0x10000 + b"\r\n10000\r\n" + b"x" * 0x10000,
        b"GET /api/whoami HTTP/1.1\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00" * 50,
    ],
    ids=["headers", "negative", "huge", "two-lengths", "length-and-chunks", "encoding", "chunks", "no-host", "garbage"],
)
def test_malformed_requests(api: HttpBroker, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as connection:
        with suppress(ConnectionError):  # the server does not read all of it
            connection.sendall(request_bytes)
        with suppress(ConnectionError):
            assert connection.recv(12) == b"HTTP/1.1 400"
    assert api("GET", "/whoami").status == 200
    assert api("GET", "/queues/%2F/raw").status == 404


def test_names_are_decoded_once(api: HttpBroker) -> None:
    assert api("GET", "/queues/%252F").status == 404
    assert api("GET", "/queues/%252F/q").status == 404
    assert api("GET", "/queues/%2F").status == 200


def test_the_last_of_duplicate_keys_counts(api: HttpBroker) -> None:
    assert api("PUT", "/queues/%2F/twice", raw=b'{"durable":true,"durable":false}').status == 201
    assert not api.get("/queues/%2F/twice")["durable"]
    assert api("DELETE", "/queues/%2F/twice").status == 204


def test_many_cookies(api: HttpBroker) -> None:
    reply = api("GET", "/whoami", user=None, headers={"Cookie": "a=" + "b" * 4095})
    assert (reply.status, reply.json["error"]) == (401, "not_authorized")
    assert "no session in the first 4096 bytes of the cookies" in reply.json["reason"]
    reply = api("GET", "/whoami", user=None, headers={"Cookie": 'a="' + "\\" * 4000 + '"'})
    assert reply.status == 401
    assert api("GET", "/whoami", headers={"Cookie": "a=" + "b" * 5000}).status == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"username=guest&password=guest" + b"&a=" * 15, "the form has more than 16 fields, the maximum"),
        (b"username=guest&password=" + b"a" * (64 << 10), "Exceeded HTTP request body size limit"),
    ],
)
def test_large_sign_in_forms(api: HttpBroker, body: bytes, reason: str) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = api("POST", "/login", user=None, headers=headers, raw=body)
    assert (reply.status, reply.json["reason"]) == (400, reason)


@pytest.mark.parametrize(
    ("content_type", "head", "fields"),
    [
        ("multipart/form-data; boundary=b", b'form-data; name="file"', {"file": b"x"}),
        ('Multipart/Form-Data; charset=utf-8; Boundary="b"', b"form-data; name=file", {"file": b"x"}),
        ("multipart/form-data;boundary=b", b'form-data; filename="a; name=other\\""; name="fi\\"le"', {'fi"le': b"x"}),
        ("multipart/form-data;boundary=b", b'form-data; NAME = "f"; name="file"', {"file": b"x"}),
    ],
)
def test_parameters_of_forms(content_type: str, head: bytes, fields: dict[str, bytes]) -> None:
    content = b"--b\r\nContent-Disposition: " + head + b"\r\n\r\nx\r\n--b--\r\n"
    assert read_form(content, content_type) == fields
