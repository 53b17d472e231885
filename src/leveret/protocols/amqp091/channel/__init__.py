"""Channels of 0-9-1 and 0-9: publishes, confirms, consumers, acknowledgements."""
