"""Decoding of message bodies."""
