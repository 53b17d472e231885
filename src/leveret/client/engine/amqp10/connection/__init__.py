"""Connections of AMQP 1.0: frames of one socket, handshake, recovery."""
