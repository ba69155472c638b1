"""Chunked linear recurrences: the shared part of the Triton kernels of scans and delta rules.

Per row and head, a state S [K, V] decays, is updated with k v^T and is read with q. Within a chunk
of rows these are matrix products. With S the state before the chunk, by row

    d = solve (v - known * k S)             for a delta rule, else d = v
    y = read * q S + mix d
    S = total * S + (k * kept)^T d

Each op has a kernel that computes, for all chunks in parallel, `mix` and `solve` [blocks, h, C, C],
`read`, `known` and `kept` [T, h] and `total` [blocks, h], all float32; `advance` then runs the
chunks in sequence. The chunks of sequence s are the blocks from starts[s] // C + s on. Sequences of
at most `SHORT` rows are skipped: another kernel of the op runs them row by row.
"""
