"""An OpenID provider as a process: `oidc-provider` for Node.js, which shares no code with the broker's verifier."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.npm import install

SOURCES = Path(__file__).parent


class OidcProvider:
    """A running provider, at `issuer`."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    def config(self, *lines: str, section: str = "auth.oauth") -> str:
        """Return the section of a broker that accepts the provider's tokens, with more settings."""
        settings = ['resource_server_id = "leveret"', f"issuer = {json.dumps(self.issuer)}", *lines]
        return f"\n[{section}]\n" + "\n".join(settings) + "\n"

    def token(
        self,
        scope: str,
        *,
        ttl: int = 3600,
        claims: Mapping[str, Any] | None = None,
        algorithm: str = "RS256",
        audience: str = "leveret",
    ) -> str:
        """Return an access token for a service."""
        headers = {
            "authorization": "Basic " + base64.b64encode(b"service:secret").decode(),
            "x-ttl": str(ttl),
            "x-alg": algorithm,
            "x-audience": audience,
            "x-claims": json.dumps(claims or {}),
        }
        form = urllib.parse.urlencode({"grant_type": "client_credentials", "scope": scope}).encode()
        return str(self._request("/token", form, headers)["access_token"])

    def rotate(self) -> None:
        """Replace the signing keys."""
        self._request("/test/rotate", b"{}")

    def set_lifetime(self, seconds: int) -> None:
        """Set the lifetime of access tokens."""
        self._request("/test/ttl", json.dumps({"ttl": seconds}).encode())

    def answer_tokens(self, answers: bool) -> None:
        """Set whether requests for tokens are answered, or with status 503."""
        self._request("/test/tokens", json.dumps({"answers": answers}).encode())

    def sign_in(self, name: str, redirect: str, scopes: str) -> dict[str, Any]:
        """Return the tokens of a user for the client `console`, by the authorization code flow with PKCE."""
        verifier = "v" * 43
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        parameters = {
            "response_type": "code",
            "client_id": "console",
            "redirect_uri": redirect,
            "scope": scopes,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        with httpx.Client(follow_redirects=False, trust_env=False, timeout=60) as browser:
            address = f"{self.issuer}/auth?{urllib.parse.urlencode(parameters)}"
            while not address.startswith(redirect):
                answer = browser.get(address)
                if answer.status_code == 200:  # the page to sign in, or to agree
                    prompt = "login" if 'name="login"' in answer.text else "consent"
                    form = {"prompt": prompt, "login": name, "password": "any"}
                    answer = browser.post(address, data=form)
                address = urllib.parse.urljoin(address, answer.headers["location"])
            code = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["code"][0]
            form = {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": redirect,
                "client_id": "console",
                "code_verifier": verifier,
            }
            found: dict[str, Any] = browser.post(f"{self.issuer}/token", data=form).json()
        return found

    def accepts(self, refresh_token: str) -> bool:
        """Return whether a refresh token of the client `console` is valid. If so, it is used up."""
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": "console"}
        return httpx.post(f"{self.issuer}/token", data=form, trust_env=False, timeout=60).status_code == 200

    def serve_keys(self, mode: str) -> None:
        """Change how the keys are served: see `provider.mjs`."""
        self._request("/test/jwks", json.dumps({"mode": mode}).encode())

    def fetches(self) -> int:
        """Return the number of requests for the keys."""
        return int(self._request("/test/jwks")["fetches"])

    def _request(self, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
        request = urllib.request.Request(self.issuer + path, content, dict(headers or {}))
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None


@contextmanager
def run_provider(redirects: list[str] | None = None) -> Iterator[OidcProvider]:
    """Run a provider whose client `console` may redirect to these addresses."""
    environment = os.environ | {
        "NODE_PATH": str(install(SOURCES, "oidc")),
        "OIDC_REDIRECTS": json.dumps(redirects or ["http://127.0.0.1/"]),
    }
    process = subprocess.Popen(
        ["node", str(SOURCES / "provider.mjs")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield OidcProvider(json.loads(process.stdout.readline())["issuer"])
        finally:
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
