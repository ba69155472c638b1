"""Adapters (LoRA, DoRA, aLoRA, X-LoRA and whole weights), selected for each row of a batch.

A plugin reads a folder to `weights`; `targets` finds the modules that they change; `loader` checks
and packs them; `delta` computes with them on the device, where `pool` holds them; `mixture_table`
has the adapters of each row; `store` has the adapters in host memory and `registry` their names.
One formula holds for every kind:

    y = y0 + sum_i [(g_i - 1) y0 + g_i s_i (B_i A_i x + b_i)]

y0 is the base's output without its bias; g_i = 1, or DoRA's gain per output row.
"""
