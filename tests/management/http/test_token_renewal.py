"""Sessions whose access tokens are renewed at a real OpenID provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.management.http.client import HttpBroker, Reply
from tests.support.broker import LeveretProcess, basic_config
from tests.support.oidc import OidcProvider, run_provider
from tests.support.polling import wait_until

REDIRECT = "http://127.0.0.1/"
NO_CHANGES: Final[Mapping[str, str]] = {}
SCOPES = "openid leveret.tag:administrator leveret.read:*/*"


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    pytest.importorskip("joserfc", reason="the extra leveret[oauth] is not installed")
    with run_provider([REDIRECT]) as running:
        running.set_lifetime(2)
        yield running


@pytest.fixture(scope="module")
def partner() -> Iterator[OidcProvider]:
    """One more provider on the sign-in page."""
    with run_provider([REDIRECT]) as running:
        running.set_lifetime(2)
        yield running


@pytest.fixture(scope="module")
def running(
    provider: OidcProvider, partner: OidcProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpBroker]:
    settings = (
        '[management]\nport = 0\nrefused_logins = 0\noauth_client_id = "console"\n'
        '[management.oauth_providers.partner]\nclient_id = "console"\nlabel = "the partner"\nscopes = ["openid", "x"]\n'
    )
    more = partner.config("clock_skew = 0", section="auth.oauth.providers.partner")
    process = LeveretProcess(
        tmp_path_factory.mktemp("renewal"),
        config=basic_config() + provider.config("clock_skew = 0") + more + settings,
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        yield HttpBroker(process)


@pytest.fixture
def api(running: HttpBroker) -> Iterator[HttpBroker]:
    yield running
    running.process.check_log()


class Session:
    """The session of a user who has signed in at the provider.

    Attributes:
        credentials: The tokens of the sign-in.
    """

    def __init__(self, api: HttpBroker, credentials: dict[str, Any], cookie: str) -> None:
        self._api = api
        self.credentials = credentials
        self._cookie = cookie

    def __call__(self, path: str = "/whoami", method: str = "GET") -> Reply:
        headers = {"Cookie": self._cookie, "X-Leveret-Console": "1"}
        return self._api(method, path, user=None, headers=headers)


def credentials_of(provider: OidcProvider, name: str = "alice") -> dict[str, Any]:
    tokens = provider.sign_in(name, REDIRECT, SCOPES)
    return {"token": tokens["access_token"], "refresh_token": tokens["refresh_token"]}


def sign_in(api: HttpBroker, provider: OidcProvider, changed: Mapping[str, str] = NO_CHANGES) -> Session:
    """Sign in at the API, again if the token has expired before the API reads it on a slow machine."""
    found: list[Session] = []

    def attempt() -> bool:
        credentials = {**credentials_of(provider), **changed}
        reply = api("POST", "/leveret/session", credentials, user=None)
        if reply.status == 201:
            found.append(Session(api, credentials, reply.headers["set-cookie"].partition(";")[0]))
        return bool(found)

    wait_until(attempt, "no sign-in succeeds")
    return found[0]


def expire(api: HttpBroker, credentials: Mapping[str, Any]) -> None:
    """Wait until an access token has expired."""
    bearer = {"Authorization": f"Bearer {credentials['token']}"}
    wait_until(lambda: api("GET", "/whoami", user=None, headers=bearer).status == 401, "the token does not expire")


def test_a_session_outlives_its_access_tokens(api: HttpBroker, provider: OidcProvider) -> None:
    session = sign_in(api, provider)
    credentials = session.credentials
    for _ in range(2):  # the provider replaces the refresh token each time
        expire(api, credentials)
        assert session().json == {"name": "alice", "tags": ["administrator"]}
        credentials = credentials_of(provider, "bob")
    (own,) = session("/leveret/sessions").json
    assert own["expires_at"] - own["opened_at"] > 3_600_000


def test_concurrent_requests_renew_a_token_once(api: HttpBroker, provider: OidcProvider) -> None:
    """The provider takes a refresh token that is used twice for stolen, and ends the sign-in."""
    session = sign_in(api, provider)
    credentials = session.credentials
    for _ in range(2):
        expire(api, credentials)
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: session().status, range(8)))
        assert found == [200] * 8
        credentials = credentials_of(provider, "bob")


def test_a_session_without_a_refresh_token_ends_with_its_token(api: HttpBroker, provider: OidcProvider) -> None:
    session = sign_in(api, provider, {"refresh_token": ""})
    expire(api, session.credentials)
    assert session().status == 401


def test_a_refused_refresh_token_ends_the_session_with_its_token(api: HttpBroker, provider: OidcProvider) -> None:
    session = sign_in(api, provider, {"refresh_token": "invalid"})
    expire(api, session.credentials)
    assert session().status == 401
    api.process.wait_for_log("refused the refresh token with status 400")


def test_a_refresh_token_of_another_user_is_not_used(api: HttpBroker, provider: OidcProvider) -> None:
    session = sign_in(api, provider, {"refresh_token": credentials_of(provider, "bob")["refresh_token"]})
    expire(api, session.credentials)
    assert session().status == 401
    api.process.wait_for_log("the renewed token of user 'alice' is for another user")


def test_the_session_ends_if_the_provider_does_not_answer(api: HttpBroker, provider: OidcProvider) -> None:
    session = sign_in(api, provider)
    provider.answer_tokens(False)
    try:
        expire(api, session.credentials)
        assert session().status == 401
    finally:
        provider.answer_tokens(True)
    api.process.wait_for_log("cannot renew the token of user 'alice'")


def test_the_sign_in_page_lists_all_providers(api: HttpBroker, provider: OidcProvider, partner: OidcProvider) -> None:
    assert api("GET", "/leveret/providers", user=None).json == [
        {"label": "your organisation", "issuer": provider.issuer, "client_id": "console", "scopes": "openid"},
        {"label": "the partner", "issuer": partner.issuer, "client_id": "console", "scopes": "openid x"},
    ]


def test_a_token_is_renewed_at_the_provider_that_issued_it(
    api: HttpBroker, provider: OidcProvider, partner: OidcProvider
) -> None:
    session = sign_in(api, partner)
    provider.answer_tokens(False)
    try:
        expire(api, session.credentials)
        assert session().json == {"name": "alice", "tags": ["administrator"]}
    finally:
        provider.answer_tokens(True)


@pytest.mark.parametrize("end", ["sign-out", "other session", "administrator"])
def test_the_end_of_a_session_revokes_its_refresh_token(api: HttpBroker, partner: OidcProvider, end: str) -> None:
    partner.set_lifetime(60)
    try:
        session, other = sign_in(api, partner), sign_in(api, partner)
    finally:
        partner.set_lifetime(2)
    before = len(api.process.log())
    (current,) = [row["id"] for row in session("/leveret/sessions").json if row["current"]]
    path = {"sign-out": "session", "other session": "sessions", "administrator": f"all-sessions/{current}"}[end]
    assert (session if end == "sign-out" else other)(f"/leveret/{path}", "DELETE").status == 204
    api.process.wait_for_log("revoked the refresh token of user 'alice'", before)
    assert session().status == 401
    assert not partner.accepts(session.credentials["refresh_token"])
    assert partner.accepts(other.credentials["refresh_token"])


def test_signing_out_does_not_wait_for_a_provider_that_does_not_answer(api: HttpBroker, partner: OidcProvider) -> None:
    session = sign_in(api, partner)
    partner.answer_tokens(False)
    try:
        assert session("/leveret/session", "DELETE").status == 204
        api.process.wait_for_log("cannot revoke the refresh token of user 'alice'")
    finally:
        partner.answer_tokens(True)
