"""Whole brokers and clusters on virtual time, a simulated network and disks: loads, faults, histories, and their checkers.

Guards: a seed repeats a run, event by event. It is for the tests of this repository: no wheel has it, and nothing else of the package
imports it. Begin with `broker_simulation` (one broker), then `cluster_simulation`. `faults` says what strikes, `cluster_invariants` what
must hold.
"""
