"""The client's engine for AMQP 1.0, with the same calls as the one for 0-9-1: its channels are sessions, what publishes and
consumes are links."""
