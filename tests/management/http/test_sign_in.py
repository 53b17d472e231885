"""Sessions for browsers, and the limits on logins."""

from __future__ import annotations

import asyncio
import base64
import http.client
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from leveret import sync
from leveret.management.control_client import call
from leveret.management.http.attempts import MAX_ADDRESSES, MAX_PENDING, PERIOD, Attempts
from leveret.management.http.errors import HttpError
from leveret.management.http.sessions import MAX_PER_USER, MAX_SESSIONS, Sessions
from tests.management.http.brokers import USERS
from tests.management.http.client import HttpBroker, Reply
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until

# The default of the setting.
MAX_REFUSED = 30
CONSOLE = {"X-Leveret-Console": "1"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# Sessions


def test_a_session_ends_after_its_lifetime_or_when_it_is_idle() -> None:
    clock = Clock()
    sessions = Sessions(100, 30, clock)
    value = sessions.open("alice", credential="x")
    for _ in range(4):
        clock.now += 24
        found = sessions.find(value)
        assert found is not None and (found.name, found.credential) == ("alice", "x")
    clock.now += 4
    assert sessions.find(value) is None
    value = sessions.open("alice")
    clock.now += 30
    assert sessions.find(value) is None and len(sessions) == 0


def test_a_token_may_shorten_the_lifetime_but_not_extend_it() -> None:
    clock = Clock()
    sessions = Sessions(100, 1000, clock)
    short, long = sessions.open("alice", token="t", lifetime=10), sessions.open("alice", token="t", lifetime=900)
    clock.now += 10
    assert sessions.find(short) is None and sessions.find(long) is not None
    clock.now += 90
    assert sessions.find(long) is None


def test_a_session_whose_token_can_be_renewed_outlives_it() -> None:
    clock = Clock()
    sessions = Sessions(1000, 1000, clock)
    session = sessions.find(sessions.open("alice", token="t", lifetime=300, refresh_token="r"))
    assert session is not None and not sessions.is_due(session)
    clock.now += 240
    assert sessions.is_due(session)
    sessions.postpone(session, 10)
    assert not sessions.is_due(session)
    clock.now += 10
    assert sessions.is_due(session)
    sessions.renewed(session, "u", 20, "s")
    assert (session.token, session.refresh_token, sessions.is_due(session)) == ("u", "s", False)
    clock.now += 10
    assert sessions.is_due(session)  # half of the short lifetime
    clock.now += 739
    assert [left for found, _, _, left in sessions.of_user("alice") if found is session] == [1]
    session.refresh_token = ""
    assert sessions.of_user("alice") == []


def test_a_user_has_a_limited_number_of_sessions() -> None:
    sessions = Sessions(100, 100, Clock())
    other = sessions.open("bob")
    values = [sessions.open("alice") for _ in range(MAX_PER_USER)]
    sessions.find(values[0])
    values.append(sessions.open("alice"))
    # The session that was not used for longest has ended.
    assert [number for number, value in enumerate(values) if sessions.find(value) is None] == [1]
    assert sessions.find(other) is not None


def test_the_number_of_sessions_is_limited() -> None:
    sessions = Sessions(100, 100, Clock())
    first = sessions.open("first")
    for number in range(MAX_SESSIONS):
        sessions.open(f"user-{number}")
    assert len(sessions) == MAX_SESSIONS and sessions.find(first) is None


def test_values_of_cookies_cannot_be_guessed() -> None:
    sessions = Sessions(100, 100, Clock())
    values = {sessions.open("alice") for _ in range(10)}
    assert len(values) == 10 and all(len(value) >= 43 for value in values)
    assert sessions.find("") is None and sessions.find("\udcff") is None


# Limits


def test_refused_logins_of_an_address_are_limited_for_a_period() -> None:
    clock = Clock()
    attempts = Attempts(MAX_REFUSED, clock)
    for _ in range(MAX_REFUSED):
        with attempts.attempt("192.0.2.1"):
            attempts.refused("192.0.2.1")
    with pytest.raises(HttpError) as error, attempts.attempt("192.0.2.1"):
        pass
    assert error.value.status == 429 and error.value.headers == (("retry-after", "60"),)
    with attempts.attempt("192.0.2.2"):
        pass
    clock.now += PERIOD
    with attempts.attempt("192.0.2.1"):
        pass


def test_pending_logins_of_an_ipv6_network_are_limited() -> None:
    attempts = Attempts(MAX_REFUSED)

    async def pend(release: asyncio.Event, number: int) -> None:
        with attempts.attempt(f"2001:db8::{number:x}"):
            await release.wait()

    async def check() -> None:
        release = asyncio.Event()
        tasks = [asyncio.create_task(pend(release, number)) for number in range(MAX_PENDING)]
        await asyncio.sleep(0)
        with pytest.raises(HttpError, match="pending"), attempts.attempt("2001:db8::ffff"):
            pass
        with attempts.attempt("2001:db8:1::1"):
            pass
        release.set()
        await asyncio.gather(*tasks)
        with attempts.attempt("2001:db8::1"):
            pass

    asyncio.run(check())


def test_the_number_of_remembered_addresses_is_limited() -> None:
    attempts = Attempts(MAX_REFUSED)
    for number in range(MAX_ADDRESSES + 1):
        for _ in range(MAX_REFUSED if not number else 1):
            attempts.refused(f"198.18.{number >> 8}.{number & 255}")
    with attempts.attempt("198.18.0.0"):
        pass


# The API


def sign_in(api: HttpBroker, body: Any = None, **headers: str) -> Reply:
    body = {"username": "guest", "password": "guest"} if body is None else body
    return api("POST", "/leveret/session", body, user=None, headers=headers)


def cookie_of(reply: Reply) -> str:
    return reply.headers["set-cookie"].partition(";")[0]


def with_cookie(api: HttpBroker, cookie: str, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    return api(method, path, body, user=None, headers={"Cookie": cookie, **headers})


def test_a_session_stands_for_its_user(api: HttpBroker) -> None:
    reply = sign_in(api, {"username": "manager", "password": "manager"})
    user = {"name": "manager", "tags": ["management"], "grants": [], "vhosts": ["/"], "policy_vhosts": []}
    assert (reply.status, reply.json) == (201, {"user": user})
    cookie = cookie_of(reply)
    assert with_cookie(api, cookie, "GET", "/whoami").json == {"name": "manager", "tags": ["management"]}
    assert with_cookie(api, cookie, "GET", "/users").json["reason"] == "Not administrator user"
    assert with_cookie(api, cookie, "PUT", "/queues/%2F/mine-s", {}, **CONSOLE).status == 201
    assert with_cookie(api, cookie, "PUT", "/queues/%2F/other", {}, **CONSOLE).status == 401
    assert with_cookie(api, cookie, "DELETE", "/queues/%2F/mine-s", **CONSOLE).status == 204
    found = with_cookie(api, cookie, "GET", "/leveret/session").json
    assert found == {"user": user}


def test_the_cookie_is_for_this_site_and_not_for_scripts(api: HttpBroker) -> None:
    name, *attributes = sign_in(api).headers["set-cookie"].split("; ")
    assert name.startswith(f"leveret_session_{api.port}=")
    assert sorted(attributes) == ["HttpOnly", "Path=/", "SameSite=Strict"]


def test_the_cookie_is_secure_under_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    settings = {"ENABLED": "true", "PORT": "0", "PATH_PREFIX": "/broker", "TLS_CERT": str(certificate), "TLS_KEY": str(key)}
    environment = {f"LEVERET_MANAGEMENT__{name}": value for name, value in settings.items()}
    with LeveretProcess(tmp_path / "broker", config=basic_config(), environment=environment).start() as process:
        port = HttpBroker(process, "/broker").port
        context = ssl.create_default_context(cafile=str(authority.path))
        connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=60)
        connection.request("POST", "/broker/api/login", urlencode({"username": "guest", "password": "guest"}), FORM)
        attributes = (connection.getresponse().getheader("set-cookie") or "").split("; ")[1:]
        connection.close()
    assert sorted(attributes) == ["HttpOnly", "Path=/broker", "SameSite=Strict", "Secure"]


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def test_login_takes_a_form_as_in_rabbitmq(api: HttpBroker) -> None:
    form = urlencode({"username": "guest", "password": "guest"}).encode()
    reply = api("POST", "/login", user=None, raw=form, headers=FORM)
    assert (reply.status, reply.content) == (200, b'"ok"')
    assert with_cookie(api, cookie_of(reply), "GET", "/whoami").json["name"] == "guest"
    reply = api("POST", "/login", user=None, raw=b"username=guest&password=wrong", headers=FORM)
    assert (reply.status, reply.json) == (401, {"error": "not_authorized", "reason": "Login failed"})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 401),
        ({"username": "guest"}, 401),
        ({"username": "guest", "password": "wrong"}, 401),
        ({"username": "unknown", "password": "guest"}, 401),
        ({"username": "plain", "password": "plain"}, 401),
        ({"token": "eyJhbGciOiJub25lIn0.e30."}, 401),
        ({"username": 7, "password": "guest"}, 400),
        ({"username": "guest", "password": ["guest"]}, 400),
        ([], 400),
    ],
)
def test_no_session_without_valid_credentials(api: HttpBroker, body: Any, status: int) -> None:
    reply = sign_in(api, body)
    assert reply.status == status and "set-cookie" not in reply.headers


def test_signing_out_ends_the_session(api: HttpBroker) -> None:
    cookie = cookie_of(sign_in(api))
    reply = with_cookie(api, cookie, "DELETE", "/leveret/session")
    assert reply.status == 204 and "Max-Age=0" in reply.headers["set-cookie"]
    reply = with_cookie(api, cookie, "GET", "/whoami")
    assert (reply.status, reply.json["reason"]) == (401, "the session has ended; sign in again")
    assert with_cookie(api, cookie, "GET", "/leveret/session").json == {"user": None}


def test_users_see_their_sessions_and_end_them(api: HttpBroker) -> None:
    agents = [{"User-Agent": f"{name} {'x' * 300}"} for name in ("first", "second", "third")]
    user = {"username": "viewer", "password": "viewer"}  # read-only
    first, second, third = (cookie_of(sign_in(api, user, **agent)) for agent in agents)
    other = cookie_of(sign_in(api))
    found = with_cookie(api, first, "GET", "/leveret/sessions").json
    assert [(row["current"], row["user_agent"][:6].strip()) for row in found] == [
        (True, "first"),
        (False, "third"),
        (False, "second"),
    ]
    assert {row["address"] for row in found} == {"127.0.0.1"}
    assert all(len(row["user_agent"]) == 200 for row in found)
    assert all(row["opened_at"] <= row["used_at"] < row["expires_at"] for row in found)
    assert first.partition("=")[2] not in str(found)
    assert [row["current"] for row in api.get("/leveret/sessions", user="viewer")] == [False] * 3
    path = f"/leveret/sessions/{found[2]['id']}"
    assert with_cookie(api, first, "DELETE", path).status == 401  # a form of another page
    assert with_cookie(api, other, "DELETE", path, **CONSOLE).status == 404  # of another user
    assert with_cookie(api, first, "DELETE", path, **CONSOLE).status == 204
    assert with_cookie(api, first, "DELETE", path, **CONSOLE).status == 404
    assert [with_cookie(api, cookie, "GET", "/whoami").status for cookie in (first, second, third)] == [200, 401, 200]
    assert with_cookie(api, first, "DELETE", "/leveret/sessions", **CONSOLE).status == 204
    assert [with_cookie(api, cookie, "GET", "/whoami").status for cookie in (first, third, other)] == [200, 401, 200]
    assert api("DELETE", "/leveret/sessions", user="viewer").status == 204
    assert with_cookie(api, first, "GET", "/whoami").status == 401


def test_administrators_end_the_sessions_of_all_users(api: HttpBroker) -> None:
    login = {"username": "monitor", "password": "monitor"}
    first, second = cookie_of(sign_in(api, login)), cookie_of(sign_in(api, login))
    own = cookie_of(sign_in(api))
    found = with_cookie(api, own, "GET", "/leveret/all-sessions").json
    assert [(row["user"], row["current"]) for row in found[:3]] == [("guest", True), ("monitor", False), ("monitor", False)]
    assert all(cookie.partition("=")[2] not in str(found) for cookie in (first, second, own))
    path = f"/leveret/all-sessions/{found[1]['id']}"
    for user in ("monitor", "maker", "viewer"):  # the viewer is read-only
        assert api("DELETE", path, user=user).status == 401
    assert api("GET", "/leveret/all-sessions", user="monitor").status == 401
    assert with_cookie(api, own, "DELETE", path, **CONSOLE).status == 204
    assert api("DELETE", path).status == 404
    assert [with_cookie(api, cookie, "GET", "/whoami").status for cookie in (first, second, own)] == [200, 401, 200]
    assert "user" not in with_cookie(api, first, "GET", "/leveret/sessions").json[0]


def test_a_refresh_token_needs_a_provider(api: HttpBroker) -> None:
    reply = sign_in(api, {"token": "e30.e30.", "refresh_token": "x"})
    assert (reply.status, "management.oauth_client_id" in reply.json["reason"]) == (400, True)
    assert sign_in(api, {"token": "e30.e30.", "refresh_token": 1}).status == 400


@pytest.mark.parametrize("change", ["password", "delete"])
def test_a_changed_password_and_a_deleted_user_end_the_session(api: HttpBroker, change: str) -> None:
    api("PUT", "/users/temporary", {"password": "first", "tags": "monitoring"})
    cookie = cookie_of(sign_in(api, {"username": "temporary", "password": "first"}))
    # Other changes of the user apply to the session.
    api("PUT", "/permissions/%2F/temporary", {"configure": "", "write": "", "read": ""})
    assert with_cookie(api, cookie, "GET", "/whoami").status == 200
    if change == "password":
        api("PUT", "/users/temporary", {"password": "second", "tags": "monitoring"})
    else:
        api("DELETE", "/users/temporary")
        # A new user with the same name and password is another user.
        api("PUT", "/users/temporary", {"password": "first", "tags": "monitoring"})
    assert with_cookie(api, cookie, "GET", "/whoami").status == 401
    api("DELETE", "/users/temporary")


def test_the_tags_of_the_user_apply_to_the_session_at_once(api: HttpBroker) -> None:
    api("PUT", "/users/temporary", {"password": "first", "tags": "administrator"})
    cookie = cookie_of(sign_in(api, {"username": "temporary", "password": "first"}))
    assert with_cookie(api, cookie, "GET", "/users").status == 200
    call(api.process.data_dir, "users.change", {"name": "temporary", "tags": ["management"]})
    assert with_cookie(api, cookie, "GET", "/users").status == 401
    assert with_cookie(api, cookie, "GET", "/whoami").json["tags"] == ["management"]
    api("DELETE", "/users/temporary")


def test_a_change_needs_the_header_of_the_console(api: HttpBroker) -> None:
    """A form of another page of the same host has the cookie, but not the header."""
    cookie = cookie_of(sign_in(api))
    reply = with_cookie(api, cookie, "PUT", "/queues/%2F/forged", {})
    assert (reply.status, "x-leveret-console" in reply.json["reason"]) == (401, True)
    assert api("GET", "/queues/%2F/forged").status == 404


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_other_pages_can_neither_sign_in_nor_out(api: HttpBroker, origin: str, method: str) -> None:
    cookie = cookie_of(sign_in(api))
    body = {"username": "guest", "password": "guest"} if method == "POST" else None
    reply = with_cookie(api, cookie, method, "/leveret/session", body, Origin=origin)
    assert reply.status == 401 and "set-cookie" not in reply.headers
    assert with_cookie(api, cookie, "GET", "/whoami").status == 200


@pytest.mark.parametrize("value", ["", "x", "x" * 5000, "\x7f", 'a"b', "=;=;", "leveret_session=x"])
def test_invalid_cookies_are_no_session(api: HttpBroker, value: str) -> None:
    for cookie in (value, f"leveret_session_{api.port}={value}"):
        assert with_cookie(api, cookie, "GET", "/whoami").status == 401


def test_the_console_is_not_asked_for_a_password_by_the_browser(api: HttpBroker) -> None:
    assert "www-authenticate" in api("GET", "/whoami", user=None).headers
    assert "www-authenticate" not in api("GET", "/whoami", user=None, headers=CONSOLE).headers


# Floods of logins


@pytest.fixture
def flooded(tmp_path: Path) -> Iterator[HttpBroker]:
    config = basic_config() + USERS + "[management]\nport = 0\n"
    process = LeveretProcess(tmp_path, config=config, environment={"LEVERET_MANAGEMENT__ENABLED": "true"})
    with process.start():
        yield HttpBroker(process)
        process.check_log()


def test_a_flood_of_wrong_logins_is_limited_and_stalls_nothing(flooded: HttpBroker) -> None:
    api = flooded
    assert api("GET", "/whoami").status == 200
    cookie = cookie_of(sign_in(api))
    statuses: list[int] = []
    stopping = threading.Event()

    def flood(number: int) -> None:
        tries = 0
        while not stopping.is_set():
            tries += 1
            statuses.append(api("GET", "/whoami", user=f"user-{number}-{tries}", password="wrong").status)

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: statuses.count(401) >= MAX_REFUSED and 429 in statuses, lambda: f"{len(statuses)} logins")
        # Known credentials and sessions work, and new credentials from other addresses.
        assert api("GET", "/whoami").status == 200
        assert with_cookie(api, cookie, "GET", "/whoami").status == 200
        assert from_other_address(api, "monitor") == 200
        with sync.connect(api.process.url()) as connection:
            assert connection.is_open
        # At most the limit of this address was checked by the broker.
        assert statuses.count(401) <= MAX_REFUSED + MAX_PENDING
        assert set(statuses) == {401, 429}
        refused = api("GET", "/whoami", user="manager")
        assert refused.status == 429 and 1 <= int(refused.headers["retry-after"]) <= PERIOD
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def from_other_address(api: HttpBroker, user: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60, source_address=("127.0.0.2", 0))
    try:
        token = base64.b64encode(f"{user}:{user}".encode()).decode()
        connection.request("GET", "/api/whoami", headers={"Authorization": f"Basic {token}"})
        return connection.getresponse().status
    finally:
        connection.close()
