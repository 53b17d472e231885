"""Definitions in RabbitMQ's file format: export, import, and the differences between a file and a broker.

The package is independent of the transport: exports and imports are conversations (`conversation.py`), which the HTTP
API, the command line and the start of the broker conduct over their own connections.
"""
