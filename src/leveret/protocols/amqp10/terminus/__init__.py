"""Termini of AMQP 1.0: addresses, sources, targets, and what outlives their links (messaging section 3.5)."""
