"""Signing in and out: sessions for browsers."""

from __future__ import annotations

from urllib.parse import parse_qsl

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request
from leveret.management.http.identity import Identity
from leveret.management.http.request import Answer, Request

_FORM = "application/x-www-form-urlencoded"


async def login(request: Request) -> Answer:
    """Sign in with a form, as in RabbitMQ."""
    _, cookie = await _open(request)
    return Answer(204, headers=(cookie,))


async def show(request: Request) -> Answer:
    """Return the user of the session; null if there is none."""
    identity = await request.sign_in.find(request.headers, request.address)
    return Answer(body={"user": None if identity is None else _described(identity)})


async def open_session(request: Request) -> Answer:
    """Sign in with a user name and password, or with a token."""
    identity, cookie = await _open(request)
    return Answer(201, {"user": _described(identity)}, (cookie,))


async def close_session(request: Request) -> Answer:
    """Sign out."""
    return Answer(204, headers=(request.sign_in.close(request.headers),))


async def _open(request: Request) -> tuple[Identity, tuple[str, str]]:
    fields: Row
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM:
        fields = dict(parse_qsl(request.content.decode("utf-8", "replace"), keep_blank_values=True))
    else:
        fields = request.body()
    name, password, token = (fields.get(field, "") for field in ("username", "password", "token"))
    if not isinstance(name, str) or not isinstance(password, str) or not isinstance(token, str):
        raise bad_request("expected the strings 'username' and 'password', or 'token'")
    if token:
        return await request.sign_in.open("", token, request.address)
    return await request.sign_in.open(name, password, request.address)


def _described(identity: Identity) -> dict[str, object]:
    return {"name": identity.name, "tags": sorted(identity.tags)}
