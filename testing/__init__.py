"""lowtide.testing"""
