"""What a broker serves by HTTP: health, metrics and the console, and who may see them.

Guards: without a login only this machine gets in, nothing is changed by a GET, and who looks takes little of the loop.
Sees
`coordinator`, `partitions`, `security` and `config`. Begin with `service`, then `gate`.
"""
