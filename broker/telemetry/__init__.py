"""Clients' own metrics (KIP-714): which each client is to push, when it may, and the numbers that it pushed last.

Guards: what clients push costs bounded memory and no hold of the loop, whatever the bytes claim. It shows nothing by
itself. Begin with `client_instances`, then `otlp`. The handlers of GetTelemetrySubscriptions and PushTelemetry call it;
a scrape of metrics reads its series.
"""
