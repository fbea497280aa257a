"""The ledger of erasures: the internal topic `__lowtide_erasures`, which says what was erased and who has done it.

Guards: nothing is erased before the ledger says so, and no broker reports clean files before the ledger says so.

Begin with `erasure_ledger`. docs/adr/0025-ledger-of-erasures.md has the reasons.
"""
