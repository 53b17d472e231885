"""The kinds of flows."""
