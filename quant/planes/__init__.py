"""A memory layout for quantized weights (`Planes`), its storage (`Packed`) and its kernels.

Formats that consist of codes and scales build on it: `from ostro.trunks import planes`, then
`planes.Packed`, `planes.Planes`, `planes.pack_codes` and `planes.unpack_codes`.
"""

TRUNK = f"{__name__}.storage"
"""The module behind `ostro.trunks.planes`."""
