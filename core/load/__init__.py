"""Loading: from a checkpoint's tensors to a model that is ready to run."""
