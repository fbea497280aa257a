"""The handlers of share groups (KIP-932), one file for each API.

Guards: no API is registered or advertised unless `share_groups_enabled`. Begin with `registry`.
"""
