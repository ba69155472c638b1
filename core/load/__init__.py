"""Load models: from checkpoint files to a model that is ready to run."""
