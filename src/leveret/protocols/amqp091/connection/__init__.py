"""Connections of 0-9-1: handshake, login, heartbeats, output, alarms, close. `base` is shared with 0-9."""
