"""Messages from files and arguments into a broker, and from a broker into files."""
