"""Verification of JSON Web Tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwt import ClaimsOption

from leveret.security.accounts import TokenRefused
from leveret.security.oauth.account import TokenAccount
from leveret.security.oauth.keys import Keys
from leveret.security.oauth.scopes import Scopes

# Bytes of a token and of its header.
MAX_TOKEN_SIZE: Final = 16 << 10
MAX_HEADER_SIZE: Final = 4 << 10
MAX_NAME_LENGTH: Final = 255
# Scopes of the broker in one token.
MAX_SCOPES: Final = 1000


class UnknownKey(TokenRefused):
    """A token that is signed with a key which is not among the known ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """Settings of the verification.

    Attributes:
        audience: The audience that tokens must have.
        issuer: The issuer that tokens must have; "" for any.
        algorithms: The accepted algorithms.
        clock_skew: Seconds by which the clocks of provider and broker may differ.
        username_claims: The claims that may have the user's name, the most important one first.
        resource_server_id: The key of the broker's scopes in claims that are objects.
        scope_prefix: The prefix of the broker's scopes; others are ignored.
        additional_scopes: More claims with scopes, as paths.
        scope_aliases: Scopes by their alias, which are used instead of it.
    """

    audience: str
    issuer: str = ""
    algorithms: tuple[str, ...] = ("RS256",)
    clock_skew: float = 0.0
    username_claims: tuple[str, ...] = ("sub", "client_id")
    resource_server_id: str = ""
    scope_prefix: str = ""
    additional_scopes: tuple[tuple[str, ...], ...] = ()
    scope_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class _Validity(msgspec.Struct):
    """The claim about the end of a token, in seconds since 1970."""

    exp: float


class TokenVerifier:
    """Verifies tokens with the keys of one provider. `verify` takes up to a millisecond and may run in any thread."""

    def __init__(self, settings: TokenSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = jws.JWSRegistry(algorithms=list(settings.algorithms), strict_check_header=False)
        self._registry.max_header_length = MAX_HEADER_SIZE
        self._registry.max_payload_length = MAX_TOKEN_SIZE

    def verify(self, token: bytes, keys: Keys) -> TokenAccount:
        """Return the account of a token.

        Raises:
            UnknownKey: No key has the id of the token's key.
            TokenRefused: The token is invalid, has expired, or is for another audience.
        """
        if len(token) > MAX_TOKEN_SIZE:
            raise TokenRefused(f"the token has {len(token)} bytes; expected at most {MAX_TOKEN_SIZE}")
        try:
            return self._account(self._decode(token, keys))
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise TokenRefused(f"the token is invalid: {_explain(error)}") from None

    def _decode(self, token: bytes, keys: Keys) -> dict[str, object]:
        header = jws.extract_compact(token, registry=self._registry).headers()
        algorithm = header.get("alg")
        if algorithm not in self._settings.algorithms:
            raise TokenRefused(
                f"the token has the algorithm {str(algorithm)[:20]!r}; expected {' or '.join(self._settings.algorithms)}, "
                "the setting is auth.oauth.algorithms"
            )
        id = header.get("kid")
        if id is not None and not isinstance(id, str):
            raise TokenRefused("the header 'kid' of the token is not a string")
        key = keys.find(id, algorithm)
        if key is None:
            shown = "has no 'kid'" if id is None else f"is signed with the unknown key '{id[:80]}'"
            raise UnknownKey(f"the token {shown}; the {len(keys)} known keys have none for it")
        return jwt.decode(token, key.key, algorithms=[algorithm], registry=self._registry).claims

    def _account(self, claims: dict[str, object]) -> TokenAccount:
        settings = self._settings
        options: dict[str, ClaimsOption] = {
            "aud": {"essential": True, "value": settings.audience},
            "exp": {"essential": True},
        }
        if settings.issuer:
            options["iss"] = {"essential": True, "value": settings.issuer}
        # A registry is created for each token, because its clock is part of it.
        jwt.JWTClaimsRegistry(now=int(self._clock()), leeway=int(settings.clock_skew), **options).validate(claims)
        own = list(self._own_scopes(claims))
        if len(own) > MAX_SCOPES:
            raise TokenRefused(f"the token has {len(own)} scopes of the broker; expected at most {MAX_SCOPES}")
        scopes = Scopes(own, {name: value for name, value in claims.items() if isinstance(value, str)})
        return TokenAccount(self._name(claims), scopes, msgspec.convert(claims, _Validity).exp + settings.clock_skew)

    def _name(self, claims: Mapping[str, object]) -> str:
        for claim in self._settings.username_claims:
            name = claims.get(claim)
            if isinstance(name, str) and 1 <= len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_LENGTH:
                return name
        raise TokenRefused(
            f"the token has no user name: expected 1 to {MAX_NAME_LENGTH} bytes in one of the claims "
            f"{', '.join(self._settings.username_claims)}; the setting is auth.oauth.username_claims"
        )

    def _own_scopes(self, claims: Mapping[str, object]) -> Iterator[str]:
        """Return the scopes of the broker, without the prefix."""
        settings = self._settings
        found = list(self._scopes_in(claims.get("scope")))
        for path in settings.additional_scopes:
            value: object = claims
            for part in path:
                value = value.get(part) if isinstance(value, dict) else None
            found += self._scopes_in(value)
        for scope in dict.fromkeys(found):
            for one in settings.scope_aliases.get(scope, (scope,)):
                if one.startswith(settings.scope_prefix):
                    yield one.removeprefix(settings.scope_prefix)

    def _scopes_in(self, value: object) -> list[str]:
        """Return the scopes in the value of a claim: a text, a list, or an object with them by resource server."""
        if isinstance(value, dict):
            value = value.get(self._settings.resource_server_id)
        if isinstance(value, str):
            return value.split()
        return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _explain(error: Exception) -> str:
    if isinstance(error, ExpiredTokenError):
        return "it has expired"
    if isinstance(error, MissingClaimError):
        return f"it has no claim '{error.description or error}'"
    if isinstance(error, InvalidClaimError):
        return str(error)
    return f"{type(error).__name__}: {str(error)[:200]}"
