"""Transactions of AMQP 1.0: coordinator, posting, retirement, acquisition (transactions section 4)."""
