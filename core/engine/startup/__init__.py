"""The start of an engine: weights, memory, caches, engines, compilation and warm-up.

Its modules may import all others of the engine, and none of those imports them.
"""
