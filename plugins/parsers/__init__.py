"""Parsers of generated text: one plugin per notation, and the engines that several share."""
