"""Renewal of access tokens by refresh token (RFC 6749, section 6) and its revocation (RFC 7009), for a public client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec

from leveret.security.oauth.keys import InvalidKeys
from leveret.security.oauth.provider import DISCOVERY, FETCH_TIMEOUT, is_protected, request


class RefreshRefused(Exception):
    """The provider does not accept the refresh token any more."""


class ProviderUnavailable(Exception):
    """The provider does not answer, or not as expected."""


class RenewedTokens(msgspec.Struct):
    """The provider's answer: a new access token, and the refresh token that replaces the old one, "" for none."""

    access_token: str
    refresh_token: str = ""


class _Discovered(msgspec.Struct):
    issuer: str
    token_endpoint: str
    revocation_endpoint: str = ""


class Refresher:
    """Renews access tokens at one provider.

    Args:
        issuer: The issuer, whose discovery document names the address of tokens.
        client_id: The id of the client to which the tokens were issued.
        ca: A file with CA certificates to verify the provider's certificate; None for those of the system.
    """

    def __init__(self, issuer: str, client_id: str, ca: str | None = None) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._ca = ca
        self._context: ssl.SSLContext | None = None
        self._discovered: _Discovered | None = None

    async def refresh(self, refresh_token: str) -> RenewedTokens:
        """Return new tokens. Raises `RefreshRefused` or `ProviderUnavailable`."""
        async with self._client() as client:
            found = await self._discover(client)
            form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": self._client_id}
            status, content = await request(client, "POST", found.token_endpoint, form)
            if status == 200:
                return msgspec.json.decode(content, type=RenewedTokens)
        if status in (400, 401):
            raise RefreshRefused(f"{self._issuer} refused the refresh token with status {status}")
        raise ProviderUnavailable(f"{self._issuer} answered with status {status}; expected 200")

    async def revoke(self, refresh_token: str) -> bool:
        """Revoke a refresh token. Return False if the provider does not announce where. Raises `ProviderUnavailable`."""
        async with self._client() as client:
            endpoint = (await self._discover(client)).revocation_endpoint
            if not endpoint:
                return False
            if not is_protected(endpoint):
                raise ProviderUnavailable(f"{self._issuer} revokes tokens at an address that is not https://")
            form = {"token": refresh_token, "token_type_hint": "refresh_token", "client_id": self._client_id}
            status, _ = await request(client, "POST", endpoint, form)
        if status != 200:
            raise ProviderUnavailable(f"{endpoint} answered with status {status}; expected 200")
        return True

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Provide a client for some requests. Raises `ProviderUnavailable` for what fails."""
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                if self._context is None:
                    self._context = ssl.create_default_context(cafile=self._ca)
                async with httpx.AsyncClient(verify=self._context, trust_env=False, timeout=FETCH_TIMEOUT) as client:
                    yield client
        except TimeoutError:
            raise ProviderUnavailable(f"{self._issuer} did not answer within {FETCH_TIMEOUT:g} seconds") from None
        except (InvalidKeys, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProviderUnavailable(str(error)) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise ProviderUnavailable(f"{self._issuer} cannot be reached: {error or type(error).__name__}") from None

    async def _discover(self, client: httpx.AsyncClient) -> _Discovered:
        if self._discovered is not None:
            return self._discovered
        uri = self._issuer.removesuffix("/") + DISCOVERY
        status, content = await request(client, "GET", uri)
        if status != 200:
            raise ProviderUnavailable(f"{uri} answered with status {status}; expected 200")
        found = msgspec.json.decode(content, type=_Discovered)
        if found.issuer != self._issuer or not is_protected(found.token_endpoint):
            raise ProviderUnavailable(f"{uri} names another issuer, or an address of tokens that is not https://")
        self._discovered = found
        return found
