"""Verification of tokens: keys, algorithms, claims and scopes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

pytest.importorskip("joserfc", reason="the extra leveret[oauth] is not installed")

from leveret.security.accounts import TokenRefused
from leveret.security.oauth.account import TokenAccount
from leveret.security.oauth.keys import MAX_KEYS, InvalidKeys, Keys, read_keys
from leveret.security.oauth.tokens import MAX_SCOPES, MAX_TOKEN_SIZE, TokenSettings, TokenVerifier, UnknownKey

NOW = 1_800_000_000
SECRET = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def rsa_jwk(key: rsa.RSAPrivateKey, id: str, **more: str) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "kid": id, "n": number(numbers.n), "e": number(numbers.e), **more}


def ec_jwk(id: str) -> dict[str, Any]:
    numbers = EC.public_key().public_numbers()
    return {"kty": "EC", "crv": "P-256", "kid": id, "x": number(numbers.x), "y": number(numbers.y)}


def ed_jwk(id: str) -> dict[str, Any]:
    raw = ED.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return {"kty": "OKP", "crv": "Ed25519", "kid": id, "x": encoded(raw)}


def key_set(*entries: object) -> bytes:
    return json.dumps({"keys": entries}).encode()


KEYS = read_keys(key_set(rsa_jwk(SECRET, "one"), ec_jwk("two"), ed_jwk("three")), "test")


def signed(header: dict[str, Any], claims: dict[str, Any] | str) -> bytes:
    text = claims if isinstance(claims, str) else json.dumps(claims)
    content = f"{encoded(json.dumps(header).encode())}.{encoded(text.encode())}".encode()
    algorithm = header["alg"]
    if algorithm == "ES256":
        parts = decode_dss_signature(EC.sign(content, ec.ECDSA(hashes.SHA256())))
        signature = b"".join(part.to_bytes(32, "big") for part in parts)
    elif algorithm in ("EdDSA", "Ed25519"):
        signature = ED.sign(content)
    elif algorithm == "RS256":
        signature = SECRET.sign(content, padding.PKCS1v15(), hashes.SHA256())
    else:
        signature = b""
    return content + b"." + encoded(signature).encode()


def token(header: dict[str, Any] | None = None, **claims: Any) -> bytes:
    found = {"sub": "alice", "aud": "leveret", "iss": "https://id.example", "exp": NOW + 60, **claims}
    full = {"alg": "RS256", "kid": "one", **(header or {})}
    return signed(_without_none(full), _without_none(found))


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def verify(data: bytes, keys: Keys = KEYS, **settings: Any) -> TokenAccount:
    given = {"audience": "leveret", "issuer": "https://id.example", "resource_server_id": "leveret"}
    return TokenVerifier(TokenSettings(**given | {"scope_prefix": "leveret."} | settings), lambda: NOW).verify(data, keys)


def refused(data: bytes, keys: Keys = KEYS, **settings: Any) -> str:
    with pytest.raises(TokenRefused) as error:
        verify(data, keys, **settings)
    return str(error.value)


def test_an_account_has_the_name_the_expiry_and_the_scopes_of_its_token() -> None:
    account = verify(token(scope="leveret.read:*/q leveret.tag:monitoring other.write:*/* write:*/*"), clock_skew=5)
    assert account.name == "alice"
    assert account.expires_at == NOW + 65
    assert account.tags == ("monitoring",)
    assert account.may("/", "read", "q")
    assert not account.may("/", "write", "q")
    assert account.may_open("/")


@pytest.mark.parametrize(
    ("algorithm", "kid"), [("RS256", "one"), ("ES256", "two"), ("Ed25519", "three"), ("EdDSA", "three")]
)
def test_configured_algorithms_are_accepted(algorithm: str, kid: str) -> None:
    assert verify(token({"alg": algorithm, "kid": kid}), algorithms=(algorithm,)).name == "alice"


def test_another_algorithm_is_refused_with_the_setting() -> None:
    assert "auth.oauth.algorithms" in refused(token({"alg": "ES256", "kid": "two"}))


@pytest.mark.parametrize("algorithm", ["none", "None", "", 7, [], "HS256"])
def test_tokens_without_a_signature_of_a_public_key_are_refused(algorithm: object) -> None:
    assert "algorithm" in refused(token({"alg": algorithm}))


def test_an_hmac_with_the_public_key_is_refused() -> None:
    pem = SECRET.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    content = token({"alg": "HS256"}).rpartition(b".")[0]
    forged = content + b"." + encoded(hmac.digest(pem, content, hashlib.sha256)).encode()
    assert "HS256" in refused(forged)


def test_a_changed_token_is_refused() -> None:
    head, _, signature = token().split(b".")
    claims = encoded(json.dumps({"sub": "root", "aud": "leveret", "iss": "https://id.example", "exp": NOW + 60}).encode())
    assert "BadSignature" in refused(b".".join([head, claims.encode(), signature]))


def test_a_key_in_the_header_is_not_used() -> None:
    other = rsa.generate_private_key(65537, 2048)
    header = {"alg": "RS256", "kid": "one", "jwk": rsa_jwk(other, "one"), "jku": "https://evil.example"}
    content = token(header).rpartition(b".")[0]
    signature = other.sign(content, padding.PKCS1v15(), hashes.SHA256())
    assert "BadSignature" in refused(content + b"." + encoded(signature).encode())


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "other"}, "aud"),
        ({"aud": ["other"]}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": {"leveret": 1}}, "aud"),
        ({"iss": "https://evil.example"}, "iss"),
        ({"iss": None}, "iss"),
        ({"exp": None}, "exp"),
        ({"exp": NOW - 1}, "expired"),
        ({"exp": "soon"}, "exp"),
        ({"exp": True}, "exp"),
        ({"nbf": NOW + 100}, "not yet valid"),
        ({"iat": NOW + 100}, "in the future"),
        ({"sub": None}, "username_claims"),
        ({"sub": ""}, "username_claims"),
        ({"sub": 7}, "sub"),
        ({"sub": "x" * 256}, "username_claims"),
    ],
)
def test_wrong_claims_are_refused(claims: dict[str, Any], reason: str) -> None:
    assert reason in refused(token(**claims))


def test_infinite_expiry_is_refused() -> None:
    claims = '{"sub": "alice", "aud": "leveret", "iss": "https://id.example", "exp": 1e999}'
    assert "exp" in refused(signed({"alg": "RS256", "kid": "one"}, claims))


def test_clocks_may_differ_by_the_configured_skew() -> None:
    late = token(exp=NOW - 5, nbf=NOW + 5)
    assert verify(late, clock_skew=10).name == "alice"
    assert refused(late)


def test_one_of_several_audiences_suffices() -> None:
    assert verify(token(aud=["other", "leveret"])).name == "alice"


def test_the_first_configured_claim_names_the_user() -> None:
    found = verify(token(preferred_username="Alice"), username_claims=("preferred_username", "sub"))
    assert found.name == "Alice"
    assert verify(token(), username_claims=("preferred_username", "sub")).name == "alice"


@pytest.mark.parametrize("scope", ["leveret.read:*/* leveret.tag:x", ["leveret.read:*/*", "leveret.tag:x", 7]])
def test_scopes_are_a_text_or_a_list(scope: object) -> None:
    assert verify(token(scope=scope)).tags == ("x",)


def test_more_claims_with_scopes_may_be_nested() -> None:
    more = (("realm_access", "roles"), ("roles",), ("missing", "path"))
    account = verify(
        token(realm_access={"roles": ["leveret.tag:a"]}, roles={"leveret": ["leveret.tag:b"], "other": ["leveret.tag:c"]}),
        additional_scopes=more,
    )
    assert account.tags == ("a", "b")


def test_an_alias_stands_for_scopes() -> None:
    aliases = {"Admin": ("leveret.tag:administrator", "leveret.read:*/*")}
    account = verify(token(scope="Admin"), scope_aliases=aliases)
    assert account.tags == ("administrator",) and account.may("/", "read", "q")
    assert not verify(token(scope="admin"), scope_aliases=aliases).may("/", "read", "q")


def test_the_prefix_of_scopes_may_be_empty() -> None:
    assert verify(token(scope="read:*/*"), scope_prefix="").may("/", "read", "q")


def test_a_huge_token_is_refused_before_it_is_decoded() -> None:
    assert str(MAX_TOKEN_SIZE) in refused(token(pad="x" * MAX_TOKEN_SIZE))


def test_too_many_scopes_are_refused() -> None:
    scopes = [f"tag:{n}" for n in range(MAX_SCOPES + 1)]
    assert str(MAX_SCOPES) in refused(token(scope=scopes), scope_prefix="")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"..",
        b"a.b.c",
        b"e30.e30.",
        b"eyJhbGciOiJSUzI1NiJ9",
        b"\xff.\xff.\xff",
        encoded(b"[" * 3000).encode() + b".e30.e30",
        encoded(b'{"alg":"RS256","kid":{}}').encode() + b".e30.e30",
        encoded(b'{"alg":"RS256","crit":["x"],"kid":"one"}').encode() + b".e30.e30",
    ],
)
def test_garbage_is_refused(data: bytes) -> None:
    assert refused(data)


def test_deeply_nested_claims_are_refused() -> None:
    assert refused(signed({"alg": "RS256", "kid": "one"}, "[" * 9000))


# Keys


def test_an_unknown_key_has_an_error_of_its_own() -> None:
    with pytest.raises(UnknownKey, match="'new'"):
        verify(token({"kid": "new"}))


def test_a_token_without_a_key_id_needs_a_single_key() -> None:
    header = {"kid": None}
    assert verify(token(header)).name == "alice"
    both = read_keys(key_set(rsa_jwk(SECRET, "one"), rsa_jwk(SECRET, "other")), "test")
    with pytest.raises(UnknownKey, match="no 'kid'"):
        verify(token(header), both)


def test_a_key_for_another_use_or_algorithm_is_not_used() -> None:
    for more in ({"use": "enc"}, {"alg": "RS512"}):
        keys = read_keys(key_set(rsa_jwk(SECRET, "one", **more)), "test")
        with pytest.raises(UnknownKey):
            verify(token(), keys)


def test_a_public_key_may_be_a_pem_file() -> None:
    pem = SECRET.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert verify(token({"kid": None}), read_keys(pem, "test")).name == "alice"


def test_unusable_keys_in_a_set_are_ignored() -> None:
    small = rsa.generate_private_key(65537, 1024)
    entries = [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}, {"kty": "RSA"}, {"kty": "new"}, 7, rsa_jwk(small, "small")]
    assert len(read_keys(key_set(*entries, rsa_jwk(SECRET, "one")), "test")) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        key_set({"kty": "oct", "k": "c2VjcmV0"}),
        key_set(*[rsa_jwk(SECRET, f"{n}") for n in range(MAX_KEYS + 1)]),
        b"[" * 100_000,
        b" " * (1 << 18) + b"{}",
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    ],
)
def test_unusable_sets_are_refused_with_their_source(content: bytes) -> None:
    with pytest.raises(InvalidKeys, match=r"^test"):
        read_keys(content, "test")
