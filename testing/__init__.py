"""Brokers for tests: real ones in the test process, simulated ones, and clients that judge them."""
