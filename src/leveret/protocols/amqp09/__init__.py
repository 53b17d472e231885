"""AMQP 0-9 (2006, protocol header 1 1 0 9): its differences from 0-9-1, over the same engine and queues."""
