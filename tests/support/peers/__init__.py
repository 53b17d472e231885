"""Raw peers: one connection to a broker for each protocol, which may send anything, valid or not."""
