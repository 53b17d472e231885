"""Shovels: tasks that move messages from one AMQP broker to another, or between queues of one."""
