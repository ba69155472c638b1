"""Adapters: what is added to the linears of a model, chosen per row.

`weights` is what a plugin reads out of a folder, `places` finds where it belongs in a model,
`pages` holds it on the device, `mixtures` says what applies to which row, `registry` knows all of
them by name. One algebra serves every kind:

    y = y0 + sum_i [(g_i - 1) y0 + g_i s_i (B_i A_i x + b_i)]

y0 is the base's answer without its bias; g_i = 1, or DoRA's gain per output row.
"""
