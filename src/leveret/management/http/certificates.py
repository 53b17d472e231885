"""Expiry of the certificates of listeners."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

_FORMAT: Final = "%Y-%m-%d %H:%M:%S"
_CERTIFICATE: Final = "CERTIFICATE"
# Later times than any expiry: dates end with the year 9999.
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)
# Durations of the units in the path of the check.
UNITS: Final = {
    "days": timedelta(days=1),
    "weeks": timedelta(weeks=1),
    "months": timedelta(days=365) / 12,
    "years": timedelta(days=365),
}


def expiring(path: str | None, within: timedelta) -> list[str]:
    """Return the end of the validity of each certificate in a file that ends within a time; errors if it is unusable."""
    if path is None:
        return []
    from asn1crypto import pem, x509  # most brokers never need it

    now = datetime.now(UTC)
    limit = now + within if within < _FOREVER - now else _FOREVER
    try:
        blocks = [
            content for kind, _, content in pem.unarmor(Path(path).read_bytes(), multiple=True) if kind == _CERTIFICATE
        ]
        periods = [x509.Certificate.load(content)["tbs_certificate"]["validity"].native for content in blocks]
    except (OSError, ValueError) as error:
        return [f"cannot read {path}: {error}"]
    found = []
    for period in periods:
        if period["not_before"] > now:
            found.append("Certificate is not yet valid")
        elif period["not_after"] < limit:
            found.append(period["not_after"].strftime(_FORMAT))
    return found
