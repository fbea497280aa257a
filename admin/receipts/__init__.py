"""Receipts of erasures: they are made from the ledger, signed in a chain, and verified without a broker.

Everything here decides; files are read and written by the command line. Source:
docs/adr/0025-ledger-of-erasures.md.
"""
