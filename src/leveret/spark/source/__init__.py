"""Reads streams, and browses queues."""
