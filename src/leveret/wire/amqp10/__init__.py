"""Sans-I/O codec of AMQP 1.0: types, composites, frames and message sections."""
