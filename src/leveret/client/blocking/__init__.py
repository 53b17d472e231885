"""The client's blocking face."""
