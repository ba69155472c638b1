"""The training program of the starter model; the wheel does not contain it.

`python -m ostro.plugins.starter.training.train` in a checkout trains the model, its draft and its
adapters.
"""
