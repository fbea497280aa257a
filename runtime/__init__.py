"""lowtide.runtime"""
