"""Serves health, metrics and the console by HTTP, and decides who may see them.

Guards: only this machine gets in without a login, no GET changes anything, and visitors take little of the loop. Sees
`coordinator`, `partitions`, `security` and `config`. Begin with `service`, then `gate`.
"""
