"""Payloads decoded by a schema, in a process of their own."""
