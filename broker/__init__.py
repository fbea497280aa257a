"""The broker: sockets, requests, waiting, and what holds them together."""
