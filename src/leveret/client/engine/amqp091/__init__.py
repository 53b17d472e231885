"""The client's engine for AMQP 0-9-1, and the base of the one for AMQP 0-9."""
