"""lowtide.protocol"""
