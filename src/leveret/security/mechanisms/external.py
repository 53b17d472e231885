"""EXTERNAL (RFC 4422 appendix A): the verified client certificate names the user."""

from __future__ import annotations

from collections.abc import Sequence

from leveret.security.mechanisms.base import Certificate, Context, Failure, Mechanism, Outcome, Success

# RFC 4514 section 3: the short names of attribute types; others keep OpenSSL's name.
_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


class External(Mechanism):
    """An authorization identity in the response must be empty or equal the name in the certificate."""

    name = "EXTERNAL"

    @classmethod
    def available(cls, context: Context) -> bool:
        return bool(context.certificate)

    def step(self, response: bytes) -> Outcome:
        certificate = self.context.certificate
        if not certificate:
            return Failure("EXTERNAL: the client sent no certificate")
        name = subject(certificate) if self.context.external_name == "subject" else common_name(certificate)
        if not name:
            return Failure(f"EXTERNAL: the certificate {subject(certificate)!r} does not have exactly one common name")
        if response and response != name.encode():
            return Failure("EXTERNAL: acting as another user is not supported")
        return Success(name)


def common_name(certificate: Certificate) -> str | None:
    """Return the common name of the subject; None unless there is exactly one."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else None


def subject(certificate: Certificate) -> str:
    """Return the subject in the notation of RFC 4514, most specific part first: "CN=shop,O=Example"."""
    return distinguished_name(certificate.get("subject", ()))


def distinguished_name(parts: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return the name of a subject or issuer in the notation of RFC 4514, most specific part first."""
    return ",".join("+".join(f"{_SHORT.get(key, key)}={_escape(value)}" for key, value in part) for part in reversed(parts))


def _escape(value: str) -> str:
    # RFC 4514 section 2.4
    escaped = "".join("\\" + char if char in '"+,;<>\\' else "\\00" if char == "\0" else char for char in value)
    if escaped.startswith((" ", "#")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
