"""The vocabulary of management: the operations of a broker, independent of caller and transport."""
