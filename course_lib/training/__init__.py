"""How the small models that ship with the course were made, and what merging their KV heads costs."""
