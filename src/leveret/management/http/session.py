"""Signing in and out: sessions for browsers."""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_found
from leveret.management.http.identity import POLICY, Identity
from leveret.management.http.request import NO_CONTENT, Answer, Request

logger = logging.getLogger("leveret.http")

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS: Final = ("username", "password", "token", "refresh_token")
_MAX_FIELDS: Final = 16
_MAX_REFRESH_TOKEN: Final = 16 << 10
# Why a stream of events ends: it may be that of a session that has ended.
_ENDED: Final = "a session of the user has ended; connect again"


async def login(request: Request) -> Answer:
    """Sign in with a form, as in RabbitMQ."""
    _, cookie = await _open(request)
    return Answer(200, "ok", (cookie,))


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


def read_form(content: bytes) -> Row:
    """Return the fields of a form. Raises `HttpError` (400)."""
    try:
        return dict(parse_qsl(content.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise bad_request(f"the form has more than {_MAX_FIELDS} fields, the maximum") from None


async def _open(request: Request) -> tuple[Identity, tuple[str, str]]:
    fields: Row
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM:
        fields = read_form(request.content)
    else:
        fields = request.body()
    name, password, token, refresh_token = (fields.get(field, "") for field in _FIELDS)
    if not all(isinstance(field, str) for field in (name, password, token, refresh_token)):
        raise bad_request("expected the strings 'username' and 'password', or 'token' and optionally 'refresh_token'")
    agent = request.headers.get("user-agent", "")
    if not token:
        return await request.sign_in.open(name, password, request.address, agent=agent)
    if refresh_token and not request.settings.oauth_clients:
        raise bad_request("'refresh_token' without a provider; the setting is management.oauth_client_id")
    if len(refresh_token) > _MAX_REFRESH_TOKEN:
        raise bad_request(f"'refresh_token' has {len(refresh_token)} characters; expected at most {_MAX_REFRESH_TOKEN}")
    return await request.sign_in.open("", token, request.address, refresh_token=refresh_token, agent=agent)


async def list_sessions(request: Request) -> Answer:
    """List the sessions of the user."""
    return Answer(body=request.sign_in.list_own(request.headers, request.identity.name))


async def end_other_sessions(request: Request) -> Answer:
    """End all sessions of the user, except that of the request."""
    request.sign_in.end_own(request.headers, request.identity.name)
    request.events.reconnect(request.identity.name, _ENDED)
    return NO_CONTENT


async def end_session(request: Request) -> Answer:
    """End a session of the user."""
    if not request.sign_in.end_own(request.headers, request.identity.name, request.path["id"]):
        raise not_found()
    request.events.reconnect(request.identity.name, _ENDED)
    return NO_CONTENT


async def list_all_sessions(request: Request) -> Answer:
    """List the sessions of all users."""
    return Answer(body=request.sign_in.list_all(request.headers))


async def end_any_session(request: Request) -> Answer:
    """End a session of any user."""
    user = request.sign_in.end(request.path["id"])
    if not user:
        raise not_found()
    logger.info("user '%s' has ended a session of user '%s'", request.identity.name, user)
    request.events.reconnect(user, _ENDED)
    return NO_CONTENT


def _described(identity: Identity) -> dict[str, object]:
    grants = [msgspec.structs.asdict(grant) for grant in identity.grants.listed]
    vhosts = sorted(identity.vhosts)
    policies = [vhost for vhost in vhosts if POLICY.allows(identity, vhost)]
    return {
        "name": identity.name,
        "tags": sorted(identity.tags),
        "grants": grants,
        "vhosts": vhosts,
        "policy_vhosts": policies,
    }
