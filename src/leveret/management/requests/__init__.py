"""Requests of clients to the broker, published to the exchange `leveret.control` (docs/control-exchange.md)."""
