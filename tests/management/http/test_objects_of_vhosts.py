"""Alert rules and payload schemas: global parameters that belong to one vhost or to all, and who sees and changes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pytest

from leveret.management.http import global_parameters
from leveret.management.http.errors import HttpError, not_found
from leveret.management.http.identity import Identity
from leveret.management.http.places import Kind, Places
from leveret.management.http.request import Request
from tests.management.http.client import HttpBroker

NONE = {"configure": "", "write": "", "read": ""}
# Users beside guest, who is administrator, with their tags and the vhosts that they may use.
USERS = {
    "maker-a": ("policymaker", ["a"]),
    "maker-b": ("policymaker", ["b"]),
    "maker-a-monitor": ("policymaker,monitoring", ["a"]),
    "manager-a": ("management", ["a"]),
    "admin-none": ("administrator", []),
}
# Users who see, and users who may change, an object of vhost `a` and one of all vhosts.
SEE: dict[str | None, set[str]] = {
    "a": {"guest", "admin-none", "maker-a", "maker-a-monitor", "manager-a"},
    "b": {"guest", "admin-none", "maker-b", "maker-a-monitor"},
    None: {"guest", *USERS},
}
CHANGE: dict[str | None, set[str]] = {
    "a": {"guest", "admin-none", "maker-a", "maker-a-monitor"},
    "b": {"guest", "admin-none", "maker-b"},
    None: {"guest", "admin-none"},
}
POLICYMAKERS = {"guest", "admin-none", "maker-a", "maker-b", "maker-a-monitor"}
# The path of each kind, the prefix of the names of its parameters, and an object.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "/leveret/alert-rules": ("alert.", {"kind": "depth", "threshold": 1e9}),
    "/leveret/payload-schemas": ("payload-schema.", {"format": "avro", "schema": '"int"'}),
}
EVERYONE = ["guest", *USERS]
VHOSTS: list[str | None] = ["a", "b", None]


@pytest.fixture(scope="module", autouse=True)
def team(http_process: HttpBroker) -> Iterator[None]:
    for vhost in ("a", "b"):
        assert http_process("PUT", f"/vhosts/{vhost}").status == 201
    for user, (tags, vhosts) in USERS.items():
        assert http_process("PUT", f"/users/{user}", {"password": user, "tags": tags}).status == 201
        for vhost in vhosts:
            assert http_process("PUT", f"/permissions/{vhost}/{user}", NONE).status == 201
    yield
    for user in USERS:
        http_process("DELETE", f"/users/{user}")
    for vhost in ("a", "b"):
        http_process("DELETE", f"/vhosts/{vhost}")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, api: HttpBroker) -> Iterator[str]:
    """The path of a kind with an object of vhost `a`, one of vhost `b` and one of all vhosts, by these names."""
    path: str = request.param
    for vhost in VHOSTS:
        assert put(api, path, str(vhost), vhost) == 201
    yield path
    for row in api.get(path):
        assert api("DELETE", f"{path}/{row['name']}").status == 204


def put(api: HttpBroker, path: str, name: str, vhost: str | None, user: str = "guest") -> int:
    return api("PUT", f"{path}/{name}", {**KINDS[path][1], "vhost": vhost}, user=user).status


@pytest.mark.parametrize("user", EVERYONE)
def test_a_user_sees_the_objects_of_visible_vhosts(api: HttpBroker, kind: str, user: str) -> None:
    expected = {str(vhost) for vhost in VHOSTS if user in SEE[vhost]}
    assert {row["name"] for row in api.get(kind, user)} == expected
    if user not in POLICYMAKERS:
        assert api("GET", "/global-parameters", user=user).status == 401
        return
    prefix = KINDS[kind][0]
    listed = {row["name"] for row in api.get("/global-parameters", user)}
    assert {name.removeprefix(prefix) for name in listed if name.startswith(prefix)} == expected
    for vhost in VHOSTS:
        status = api("GET", f"/global-parameters/{prefix}{vhost}", user=user).status
        assert status == (200 if str(vhost) in expected else 404)


@pytest.mark.parametrize("user", EVERYONE)
def test_a_user_changes_the_objects_of_vhosts_with_permissions(api: HttpBroker, kind: str, user: str) -> None:
    for vhost in VHOSTS:
        may = user in CHANGE[vhost]
        new = f"new-{vhost}"
        assert put(api, kind, new, vhost, user) == (201 if may else 401)
        assert put(api, kind, str(vhost), vhost, user) == (204 if may else 401)
        # An object moves between vhosts only if the user may use both.
        assert put(api, kind, str(vhost), "a", user) == (204 if may and user in CHANGE["a"] else 401)
        assert put(api, kind, str(vhost), vhost) == 204
        refused = 401 if user not in POLICYMAKERS or user in SEE[vhost] else 404
        assert api("DELETE", f"{kind}/{vhost}", user=user).status == (204 if may else refused)
        assert put(api, kind, str(vhost), vhost) == (201 if may else 204)
        if may:
            assert api("DELETE", f"{kind}/{new}").status == 204


@pytest.mark.parametrize("user", EVERYONE)
def test_only_administrators_change_stored_objects_as_they_are(api: HttpBroker, kind: str, user: str) -> None:
    value: dict[str, Any] = {"value": {**KINDS[kind][1], "vhost": "a"}}
    is_administrator = user in CHANGE[None]
    for prefix in (KINDS[kind][0], "mark."):
        path = f"/global-parameters/{prefix}{quote('raw/1', safe='')}"
        reply = api("PUT", path, value, user=user)
        assert reply.status == (201 if is_administrator else 401), reply.content
        if user in POLICYMAKERS - CHANGE[None]:
            assert f"{prefix}raw/1' as it is stored; expected a request to /api/leveret/" in reply.json["reason"]
        assert api("DELETE", path, user=user).status == (204 if is_administrator else 401)


@pytest.mark.parametrize("user", EVERYONE)
def test_only_administrators_see_the_parameter_of_roles(api: HttpBroker, user: str) -> None:
    assert api("PUT", "/leveret/roles/someone", {"grants": [{"role": "viewer"}]}).status == 204
    expected = 200 if user in CHANGE[None] else 404 if user in POLICYMAKERS else 401
    assert api("GET", "/global-parameters/leveret_roles", user=user).status == expected
    listed = api("GET", "/global-parameters", user=user)
    assert ("leveret_roles" in listed.content.decode()) == (expected == 200)
    assert api("DELETE", "/leveret/roles/someone").status == 204


@pytest.mark.parametrize("user", EVERYONE)
def test_only_administrators_set_the_cluster_name(api: HttpBroker, user: str) -> None:
    expected = (204, 201, 204) if user in CHANGE[None] else (401, 401, 401)
    named = api("PUT", "/cluster-name", {"name": "named"}, user=user).status
    api("DELETE", "/global-parameters/cluster_name")
    set_raw = api("PUT", "/global-parameters/cluster_name", {"value": "named"}, user=user).status
    assert (named, set_raw, api("DELETE", "/global-parameters/cluster_name", user=user).status) == expected


@pytest.mark.parametrize("user", sorted(POLICYMAKERS))
def test_other_global_parameters_are_for_all_policymakers(api: HttpBroker, user: str) -> None:
    assert api("PUT", "/global-parameters/alerts-of-all", {"value": {"vhost": "b"}}, user=user).status == 201
    assert api.get("/global-parameters/alerts-of-all", user)["value"] == {"vhost": "b"}
    assert api("DELETE", "/global-parameters/alerts-of-all", user=user).status == 204


def test_deletions_check_what_they_delete() -> None:
    """Between the check of one and its change, another must not make room for an object of a vhost that was not checked."""
    stored = {"alert.x": {"name": "alert.x", "value": {"vhost": "a"}}}
    places = Places()

    async def get(call: str, arguments: dict[str, str]) -> dict[str, Any]:
        if arguments["name"] not in stored:
            raise not_found()
        return stored[arguments["name"]]

    async def change(call: str, arguments: dict[str, str]) -> None:
        await asyncio.sleep(0)
        del stored[arguments["name"]]

    async def delete() -> int:
        async with AsyncExitStack() as taken:

            async def occupy(kind: Kind) -> None:
                await taken.enter_async_context(places.take(kind, "maker", "::1"))

            identity = Identity("maker", frozenset({"policymaker"}), frozenset({"a"}))
            request = SimpleNamespace(name="x", identity=identity, occupy=occupy, get=get, change=change)
            try:
                return (await global_parameters.delete(cast(Request, request), "alert.")).status
            except HttpError as error:
                return error.status

    async def run() -> tuple[int, int]:
        return await asyncio.gather(delete(), delete())

    assert list(asyncio.run(run())) == [204, 404]
