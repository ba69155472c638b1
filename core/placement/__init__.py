"""Placement: which device holds which part of a model, transfers between devices, offloading."""
