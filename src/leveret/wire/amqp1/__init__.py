"""AMQP 1.0 on the wire, without sockets: types, composites, frames and the sections of messages."""
