"""Responses: requests, items, events, stored responses, and their execution in the background."""
