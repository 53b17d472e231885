"""Management: what an operator may ask of a running broker, and the local control socket that takes the questions."""
