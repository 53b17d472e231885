"""The AMQP 0-9-1 engine of the client, on which that of AMQP 0-9 is built."""
