"""Sign-in at an OpenID provider, in a real browser."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.management.http.client import HttpBroker
from tests.support.broker import LeveretProcess, basic_config, free_port, leveret_only
from tests.support.oidc import OidcProvider, run_provider
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

BUTTON = "Sign in with your organisation"
SCOPES = ["openid", "leveret.tag:administrator", "leveret.read:*/*", "leveret.write:*/*", "leveret.configure:*/*"]


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def provider(port: int) -> Iterator[OidcProvider]:
    pytest.importorskip("joserfc", reason="the extra leveret[oauth] is not installed")
    leveret_only("the web console")
    with run_provider([f"http://127.0.0.1:{port}/"]) as running:
        yield running


@pytest.fixture(scope="module")
def partner(port: int) -> Iterator[OidcProvider]:
    """One more provider."""
    with run_provider([f"http://127.0.0.1:{port}/"]) as running:
        yield running


@pytest.fixture(scope="module")
def api(
    provider: OidcProvider, partner: OidcProvider, port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpBroker]:
    management = (
        f'[management]\nport = {port}\noauth_client_id = "console"\noauth_scopes = {SCOPES}\n'
        f'[management.oauth_providers.partner]\nclient_id = "console"\nlabel = "the partner"\nscopes = {SCOPES}\n'
    )
    process = LeveretProcess(
        tmp_path_factory.mktemp("provider"),
        config=basic_config() + provider.config() + partner.config(section="auth.oauth.providers.partner") + management,
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        yield HttpBroker(process)
        process.check_log()


def sign_in_at_provider(console: Console, name: str) -> None:
    console.see_location("/interaction/")
    console.element("[name=login]").send_keys(name)
    console.element("[name=password]").send_keys("any")
    console.retry(lambda: console.element("button[type=submit]").click(), "sign in")
    console.see("Authorize")
    console.retry(lambda: console.element("button[type=submit]").click(), "authorize")


def test_the_page_of_the_provider_signs_in(console: Console, api: HttpBroker, provider: OidcProvider) -> None:
    console.open("queues", vhost="interop")
    console.click(BUTTON)
    sign_in_at_provider(console, "alice")
    # The view that was opened first, without the code in the address.
    console.see_heading("Queues")
    wait_until(lambda: console.location() == f"{console.url}#/queues?vhost=interop", console.location)
    console.see("alice")
    console.see("Users")
    # The session is a cookie: scripts have no token.
    console.see_result("", "return document.cookie")
    kept = console.script("return JSON.stringify([Object.entries(sessionStorage), Object.entries(localStorage)])")
    assert "eyJ" not in kept
    console.driver.refresh()
    console.see_heading("Queues")
    console.forget_problems()  # of the provider's pages
    # Signing out ends the session at the provider, too.
    console.click("Sign out")
    console.see_location(provider.issuer)
    console.open()
    console.find("button", BUTTON)
    console.forget_problems()


def test_each_provider_has_a_button(console: Console, api: HttpBroker, partner: OidcProvider) -> None:
    console.open("queues")
    console.find("button", BUTTON)
    console.click("Sign in with the partner")
    wait_until(lambda: partner.issuer in console.driver.current_url, lambda: console.driver.current_url)
    sign_in_at_provider(console, "carol")
    console.see_heading("Queues")
    console.see("carol")
    console.forget_problems()  # of the provider's pages
    console.click("Sign out")
    wait_until(lambda: partner.issuer in console.driver.current_url, lambda: console.driver.current_url)
    api.process.wait_for_log("revoked the refresh token of user 'carol'")
    console.open()
    console.find("button", BUTTON)
    console.forget_problems()


def test_a_code_that_was_not_asked_for_is_not_used(console: Console, api: HttpBroker) -> None:
    """A link of an attacker must not sign the user in as the attacker."""
    console.driver.get(f"{console.url}?code=stolen&state=forged")
    console.see("this sign-in was not begun here")
    console.see_location_without("code=")
    console.find("button", BUTTON)


def test_a_refused_sign_in_shows_the_reason(console: Console, api: HttpBroker, provider: OidcProvider) -> None:
    console.open()
    begun = {"issuer": provider.issuer, "state": "s", "verifier": "v", "hash": ""}
    console.script("sessionStorage.setItem('leveret.signin', JSON.stringify(arguments[0]))", begun)
    console.driver.get(f"{console.url}?error=access_denied&error_description=not+you&state=s")
    console.see("not you")


def test_passwords_work_beside_the_provider(console: Console, api: HttpBroker) -> None:
    console.open()
    console.sign_in()
    console.see_heading("Overview")


def test_the_policy_allows_requests_to_the_providers_only(
    api: HttpBroker, provider: OidcProvider, partner: OidcProvider
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    connection.request("GET", "/")
    policy = connection.getresponse().getheader("content-security-policy") or ""
    connection.close()
    assert f"connect-src 'self' {provider.issuer} {partner.issuer}" in policy.split("; ")
    assert "script-src 'self'" in policy.split("; ")


@pytest.mark.slow
def test_passwords_may_be_off(provider: OidcProvider, tmp_path: Path) -> None:
    management = '[management]\nport = 0\noauth_client_id = "console"\nbasic_auth = false\n'
    process = LeveretProcess(
        tmp_path,
        config=basic_config() + provider.config() + management,
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        api = HttpBroker(process)
        assert api("GET", "/auth", user=None).json == {
            "oauth_enabled": True,
            "oauth_client_id": "console",
            "oauth_disable_basic_auth": True,
            "oauth_provider_url": provider.issuer,
            "oauth_scopes": "openid",
        }
        refused = api("GET", "/whoami")
        assert (refused.status, "management.basic_auth" in refused.json["reason"]) == (401, True)
        assert "www-authenticate" not in refused.headers
        assert api("POST", "/leveret/session", {"username": "guest", "password": "guest"}, user=None).status == 401
        token = provider.token("leveret.tag:monitoring")
        bearer = {"Authorization": f"Bearer {token}"}
        assert api("GET", "/whoami", user=None, headers=bearer).json["name"] == "service"
        opened = api("POST", "/leveret/session", {"token": token}, user=None)
        cookie = opened.headers["set-cookie"].partition(";")[0]
        assert api("GET", "/nodes", user=None, headers={"Cookie": cookie}).status == 200
        short = provider.token("leveret.tag:monitoring", ttl=5)
        opened = api("POST", "/leveret/session", {"token": short}, user=None)
        cookie = opened.headers["set-cookie"].partition(";")[0]
        wait_until(lambda: api("GET", "/whoami", user=None, headers={"Cookie": cookie}).status == 401, "the session stays")
        process.check_log()
