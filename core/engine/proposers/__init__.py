"""Proposers of draft tokens for speculative decoding, and their selection from `--speculate`.

They use the runner and its step. `startup` alone imports them: to the scheduler and the engine they
are a `Proposer` of `speculation.py`.
"""
