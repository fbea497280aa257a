"""lowtide.storage"""
