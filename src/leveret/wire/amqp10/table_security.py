"""AMQP 1.0 in the notation of `notation.py`: SASL frames (security 5)."""

from __future__ import annotations

from typing import Final

TEXT: Final = """
define tls-major 1
define tls-minor 0
define tls-revision 0
composite sasl-mechanisms 0x40 -> sasl-frame | symbol sasl-server-mechanisms[]!
composite sasl-init 0x41 -> sasl-frame | symbol mechanism!, binary initial-response, string hostname
composite sasl-challenge 0x42 -> sasl-frame | binary challenge!
composite sasl-response 0x43 -> sasl-frame | binary response!
composite sasl-outcome 0x44 -> sasl-frame | sasl-code code!, binary additional-data
restricted sasl-code ubyte | ok=0 auth=1 sys=2 sys-perm=3 sys-temp=4
define sasl-major 1
define sasl-minor 0
define sasl-revision 0
"""
