"""Links of AMQP 1.0: senders, receivers, credit, transfers, resumption."""
