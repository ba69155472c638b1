"""Estimates of the formats and context lengths that fit in memory, from a model's headers."""
