"""Management: the calls of operators to a running broker, and the local control socket that serves them."""
