"""The ready-made kinds of flows."""
