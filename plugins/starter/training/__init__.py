"""The training program of the starter model, which is not part of the wheel.

`python -m ostro.plugins.starter.training.train` in a checkout trains the model, its draft model
and its adapters.
"""
