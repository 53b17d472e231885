"""Messages of one protocol for consumers of another, made when they are delivered; the table is in docs/conversion.md."""
