"""lowtide.metadata"""
