"""The client's engine for AMQP 1.0, with the interface of the one for 0-9-1.

Channels are sessions; publishers and consumers are links.
"""
