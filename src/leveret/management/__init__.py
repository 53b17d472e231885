"""Management operations on a running broker, and the control socket and control exchange that serve them."""
