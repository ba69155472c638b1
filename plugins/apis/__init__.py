"""HTTP APIs besides OpenAI's: their requests, responses, streams and errors."""
