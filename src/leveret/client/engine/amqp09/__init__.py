"""The client's engine for AMQP 0-9."""
