"""Brokers side by side: the same work on each, in turn, and what it cost the broker. `python -m bench --help`; read docs/performance.md.

`arguments` says what to run, `targets` starts and ends brokers, `workloads` lists the work, `report` prints what came out. Nothing here
passes or fails on time.
"""
