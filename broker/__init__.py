"""lowtide.broker"""
