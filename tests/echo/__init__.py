"""An engine without a model that answers with the prompt."""
