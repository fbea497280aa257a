"""Schemas of a registry: its client, and values that begin with the id of a schema, as Python values."""
