"""The keys that an identity provider publishes over HTTPS."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec

from leveret.security.oauth.keys import MAX_BYTES, InvalidKeys, Keys, read_keys

# Seconds for all requests together, however slowly the provider answers.
FETCH_TIMEOUT: Final = 10.0
DISCOVERY: Final = "/.well-known/openid-configuration"


class _Discovered(msgspec.Struct):
    """The fields of the provider's discovery document that are used."""

    issuer: str
    jwks_uri: str


class Provider:
    """The provider of one issuer.

    Args:
        issuer: The issuer, whose discovery document names the address of the keys.
        jwks_uri: The address of the keys; "" to discover it.
        ca: A file with CA certificates to verify the provider's certificate; None for those of the system.
    """

    def __init__(self, issuer: str, jwks_uri: str = "", ca: str | None = None) -> None:
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._ca = ca
        self._context: ssl.SSLContext | None = None

    def fetch(self) -> tuple[bytes, Keys]:
        """Return the keys, and the text that they were read from. Blocks up to `FETCH_TIMEOUT`. Raises `InvalidKeys`."""
        try:
            return asyncio.run(asyncio.wait_for(self._fetch(), FETCH_TIMEOUT))
        except TimeoutError:
            raise InvalidKeys(f"{self._jwks_uri or self._issuer} sent no keys within {FETCH_TIMEOUT:g} seconds") from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise InvalidKeys(f"{self._jwks_uri or self._issuer} cannot be reached: {reason}") from None

    async def _fetch(self) -> tuple[bytes, Keys]:
        if self._context is None:
            # Reading the certificates of the system takes about 20 ms, during which Python runs no other thread.
            self._context = ssl.create_default_context(cafile=self._ca)
        async with httpx.AsyncClient(verify=self._context, trust_env=False, timeout=FETCH_TIMEOUT) as client:
            uri = self._jwks_uri or await self._discover(client)
            content = await _get(client, uri)
        return content, read_keys(content, uri)

    async def _discover(self, client: httpx.AsyncClient) -> str:
        uri = self._issuer.removesuffix("/") + DISCOVERY
        try:
            found = msgspec.json.decode(await _get(client, uri), type=_Discovered)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidKeys(f"{uri} is not a discovery document: {error}") from None
        if found.issuer != self._issuer:
            raise InvalidKeys(
                f"{uri} names the issuer '{found.issuer[:200]}'; expected '{self._issuer}' as in auth.oauth.issuer"
            )
        if not is_protected(found.jwks_uri):
            raise InvalidKeys(f"{uri} names the keys '{found.jwks_uri[:200]}'; expected an https:// address")
        return found.jwks_uri


def is_protected(url: str) -> bool:
    """Return whether a URL is HTTPS, or HTTP on this machine. On the way over HTTP, keys could be replaced."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return bool(host)
        return parts.scheme == "http" and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


async def _get(client: httpx.AsyncClient, url: str) -> bytes:
    """Return the body of an answer. Redirects are refused."""
    status, content = await request(client, "GET", url)
    if status != 200:
        raise InvalidKeys(f"{url} answered with status {status}; expected 200")
    return content


async def request(
    client: httpx.AsyncClient, method: str, url: str, form: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Return status and body of an answer, which is not compressed and has up to `MAX_BYTES`. Raises `InvalidKeys`."""
    content = bytearray()
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    async with client.stream(method, url, headers=headers, data=form) as answer:
        async for part in answer.aiter_raw():
            content += part
            if len(content) > MAX_BYTES:
                raise InvalidKeys(f"{url} sent more than {MAX_BYTES} bytes, the maximum")
    return answer.status_code, bytes(content)
