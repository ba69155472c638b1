"""The sweep: every causal class of the installed transformers, by our loader and by itself."""
