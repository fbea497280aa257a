"""lowtide.cli"""
