"""Conventions of the HTTP API: authentication, errors, methods, paths, bodies and headers."""

from __future__ import annotations

import asyncio
import json
from unittest.mock import AsyncMock, Mock
from urllib.parse import quote

import pytest

from leveret.management.http.operations import execute
from leveret.management.http.request import Request
from tests.management.http.client import HttpBroker


def test_missing_credentials(api: HttpBroker) -> None:
    reply = api("GET", "/overview", user=None)
    assert (reply.status, reply.content) == (401, b"")
    assert reply.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"'


@pytest.mark.parametrize("header", ["Basic", "Basic %%%", "Basic Z3Vlc3Q=", "Bearer x", "Basic /w=="])
def test_malformed_credentials(api: HttpBroker, header: str) -> None:
    assert api("GET", "/overview", user=None, headers={"Authorization": header}).status == 401


def test_wrong_credentials(api: HttpBroker) -> None:
    for user in ("guest", "unknown"):
        reply = api("GET", "/overview", user=user, password="wrong")
        assert reply.status == 401
        assert reply.json == {"error": "not_authorized", "reason": "Login failed"}


def test_a_user_without_tag(api: HttpBroker) -> None:
    reply = api("GET", "/overview", user="plain")
    assert reply.status == 401
    assert reply.json == {"error": "not_authorised", "reason": "Not management user"}


def test_tags_of_routes(api: HttpBroker) -> None:
    assert api("GET", "/users", user="manager").json == {"error": "not_authorised", "reason": "Not administrator user"}
    assert api("GET", "/users", user="monitor").status == 401
    assert api("GET", "/nodes", user="manager").json == {"error": "not_authorised", "reason": "Not monitor user"}
    assert api("GET", "/nodes", user="monitor").status == 200


def test_vhosts_that_a_user_does_not_see(api: HttpBroker) -> None:
    assert [vhost["name"] for vhost in api.get("/vhosts", user="manager")] == ["/"]
    assert {vhost["name"] for vhost in api.get("/vhosts", user="monitor")} >= {"/", "interop"}
    for path in ("/queues/interop", "/exchanges/interop/amq.topic", "/bindings/interop", "/vhosts/interop"):
        assert api("GET", path, user="manager").status == 404, path
        assert api("GET", path, user="monitor").status == 200, path
    assert api("PUT", "/queues/interop/q", {}, user="monitor").status == 404
    assert {row["vhost"] for row in api.get("/exchanges", user="manager")} == {"/"}


def test_permissions_of_the_broker_apply(api: HttpBroker) -> None:
    reply = api("PUT", "/queues/%2F/other", {"durable": True}, user="manager")
    assert (reply.status, reply.json) == (401, {"error": "not_authorised", "reason": "Access refused."})
    assert api("PUT", "/queues/%2F/mine-1", {"durable": True}, user="manager").status == 201
    assert api("DELETE", "/queues/%2F/mine-1", user="manager").status == 204


def test_missing_objects(api: HttpBroker) -> None:
    for path in (
        "/nothing",
        "/queues/%2F/missing",
        "/queues/missing",
        "/queues/missing/q",
        "/exchanges/%2F/missing",
        "/vhosts/missing",
        "/users/missing",
        "/connections/missing",
        "/channels/missing",
        "/nodes/missing",
        "/permissions/%2F/missing",
        "/aliveness-test/missing",
    ):
        reply = api("GET", path)
        assert reply.status == 404, (path, reply.status, reply.content)
        assert reply.json == {"error": "Object Not Found", "reason": "Not Found"}, path


def test_methods(api: HttpBroker) -> None:
    reply = api("POST", "/overview")
    assert reply.status == 405
    assert reply.headers["allow"] == "GET, HEAD, OPTIONS"
    head = api("HEAD", "/overview")
    assert (head.status, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 1000
    options = api("OPTIONS", "/queues/%2F/any", user=None)
    assert options.status == 200
    assert options.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"
    assert "access-control-allow-origin" not in options.headers


def test_cors(api: HttpBroker) -> None:
    origin = {"Origin": "https://console.example", "Access-Control-Request-Headers": "authorization"}
    reply = api("OPTIONS", "/overview", user=None, headers=origin)
    assert reply.headers["access-control-allow-origin"] == "https://console.example"
    assert reply.headers["access-control-allow-headers"] == "authorization"
    assert api("GET", "/overview", headers=origin).headers["access-control-allow-credentials"] == "true"
    other = api("GET", "/overview", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_changes_by_pages_of_other_origins(api: HttpBroker) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        reply = api("PUT", "/queues/%2F/origins", {}, headers={"Origin": origin})
        assert (reply.status, reply.json["error"]) == (401, "not_authorised"), origin
    own = f"http://127.0.0.1:{api.port}"
    for origin in (own, "https://console.example"):
        assert api("PUT", "/queues/%2F/origins", {}, headers={"Origin": origin}).status in (201, 204), origin
    assert api("DELETE", "/queues/%2F/origins").status == 204


def test_security_headers(api: HttpBroker) -> None:
    headers = api("GET", "/overview").headers
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "server" not in headers
    assert "origin" in headers["vary"]


def test_compression(api: HttpBroker) -> None:
    reply = api("GET", "/overview", headers={"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.json["product_name"] == "Leveret"


@pytest.mark.parametrize("name", ["a/b", "a b", "a+b", "ü", "%2F", "..", "a?b", "#", "~", "detailed x"])
def test_names_in_paths(api: HttpBroker, name: str) -> None:
    path = "/queues/%2F/" + quote(name, safe="")
    assert api("PUT", path, {"durable": True}).status == 201
    assert api.get(path)["name"] == name
    assert api("DELETE", path).status == 204


def test_a_plus_in_a_path_is_no_space(api: HttpBroker) -> None:
    assert api("PUT", "/queues/%2f/a+b", {}).status == 201
    assert api.get("/queues/%2f/a+b")["name"] == "a+b"
    assert api("DELETE", "/queues/%2F/a%2Bb").status == 204


def test_bodies(api: HttpBroker) -> None:
    path = "/queues/%2F/bodies"
    for raw in (b"", b"null", b"undefined", b"\xef\xbb\xbf{}", b"{}", b'{"unknown": 1}'):
        assert api("PUT", path, raw=raw).status in (201, 204), raw
    for raw in (b"[]", b"1", b"{", b"\xff", b"[" * 50_000):
        reply = api("PUT", path, raw=raw)
        assert (reply.status, reply.json) == (400, {"error": "bad_request", "reason": "not_json"}), raw
    assert "doubly-JSON-encoded" in api("PUT", path, json.dumps("{}")).json["reason"]
    assert api("PUT", path, {"arguments": [1]}).status == 400
    assert api("PUT", path, {"durable": "maybe"}).status == 400
    assert api("DELETE", path).status == 204


def test_a_body_above_the_limit(api: HttpBroker) -> None:
    reply = api("PUT", "/queues/%2F/large", {"arguments": {"x": "y" * 200_000}})
    assert reply.status == 400
    assert reply.json["reason"] == "Exceeded HTTP request body size limit"


def test_missing_keys(api: HttpBroker) -> None:
    reply = api("PUT", "/permissions/%2F/guest", {"configure": ".*"})
    assert reply.status == 400
    assert reply.json == {"error": "bad_request", "reason": "[{key_missing,write},{key_missing,read}]"}


def test_long_results_of_operations_are_encoded_in_parts() -> None:
    """Other requests are served between them."""

    async def parts() -> list[bytes]:
        request = Mock(Request, control=Mock(call=AsyncMock(return_value=rows)), body=dict)
        request.name = "queues.list"
        answer = await execute(request)
        assert answer.stream is not None
        return [part async for part in answer.stream]

    for count in (0, 1, 2001):
        rows = [{"name": f"q{number}"} for number in range(count)]
        found = asyncio.run(parts())
        assert json.loads(b"".join(found)) == {"result": rows}
        assert max(map(len, found)) < 10_000
