"""Certificates for tests: an authority, and the certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates and writes them, with their keys, as PEM files into a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._build(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _build(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        constraints: x509.BasicConstraints,
        san: x509.SubjectAlternativeName | None = None,
        days: float = 1,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if constraints.ca:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        if san is not None:
            builder = builder.add_extension(san, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def issue(
        self,
        name: str,
        subject: list[tuple[x509.ObjectIdentifier, str]] | None = None,
        password: bytes | None = None,
        days: float = 1,
        has_names: bool = True,
    ) -> tuple[Path, Path]:
        """Return a certificate for localhost with the common name `name` (or a whole subject), and its key.

        It is valid for a number of days; a negative one has expired. Without `has_names`, it is for no host.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        parts = subject if subject is not None else [(NameOID.COMMON_NAME, name)]
        san = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._build(
            x509.Name([x509.NameAttribute(*part) for part in parts]),
            key,
            x509.BasicConstraints(ca=False, path_length=None),
            san if has_names else None,
            days,
        )
        cert_path, key_path = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
        return cert_path, key_path
