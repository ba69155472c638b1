"""Proposers of draft tokens for speculative decoding, and their selection from `--speculate`.

They use the runner. Within the engine, `startup` alone imports them: to the scheduler and `Engine`
they are a `Proposer` of `speculation.py`.
"""
