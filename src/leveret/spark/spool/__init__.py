"""Reads queues of any AMQP broker through a spool on disk."""
