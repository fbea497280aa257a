"""Compares brokers: runs the same work on each in turn, and measures its cost for the broker.

`python -m bench --help`; read docs/lab/measuring.md. `arguments` parses the command line, `targets` starts and ends
brokers, `workloads` lists the work, `report` prints the results. Nothing here passes or fails on time.
"""
