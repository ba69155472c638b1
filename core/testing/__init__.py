"""What shows that a plugin is right: parity with a reference, mutants, and the grids of the design.

Shipped, so that an architecture from outside is held to what ours are held to. Nothing here is
imported by the engine.
"""
