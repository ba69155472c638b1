"""Planes: one memory layout for quantized weights, its storage and its kernels.

The formats of codes and scales build on it: `from ostro.trunks import planes`, then
`planes.Packed`, `planes.Planes`, `planes.pack_codes` and `planes.unpack_codes`.
"""

TRUNK = f"{__name__}.storage"
"""The module that `ostro.trunks.planes` is."""
