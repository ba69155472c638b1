"""What fits a machine: a model in every format beside the memory there is, from its headers."""
