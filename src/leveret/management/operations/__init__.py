"""The vocabulary of management: what can be asked of a broker, whoever asks and over whatever transport."""
