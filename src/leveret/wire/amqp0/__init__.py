"""Sans-I/O codec of AMQP 0-9-1 and 0-9: `engine.Engine` converts bytes to commands and back."""
