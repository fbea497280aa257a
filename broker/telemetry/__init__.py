"""Collects clients' own metrics (KIP-714): what each client should push and when, and the last pushed numbers.

Guards: pushed metrics cost limited memory and never block the loop, whatever their bytes say. Begin with
`client_instances`, then `otlp`. The handlers of GetTelemetrySubscriptions and PushTelemetry call this room, and a
scrape of metrics reads its series.
"""
