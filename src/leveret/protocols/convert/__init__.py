"""Conversion of messages for consumers of another protocol, at delivery. The mapping is in docs/conversion.md."""
