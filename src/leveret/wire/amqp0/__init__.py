"""AMQP 0-9-1 and 0-9 on the wire, without sockets: `engine.Engine` turns octets into commands and back."""
