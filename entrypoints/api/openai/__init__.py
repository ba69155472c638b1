"""OpenAI's API: its routes as handlers, its types, and what it stores."""
