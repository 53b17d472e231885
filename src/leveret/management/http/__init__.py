"""The HTTP API, in the shape of RabbitMQ's: a process of its own, which calls the broker over the control socket."""
