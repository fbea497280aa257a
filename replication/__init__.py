"""lowtide.replication"""
