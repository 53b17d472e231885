"""Management of a running broker: operations, the interfaces that serve them, definitions, the audit log, telemetry."""
