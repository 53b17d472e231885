"""Channels of 0-9: tickets, consumers by content class, distributed transactions."""
