"""Connections of 0-9: handshake, redirection, interrupted channels."""
