"""The telemetry process: spans and metrics for OpenTelemetry, exported by OTLP."""
