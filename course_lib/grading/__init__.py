"""Grade submissions: run a notebook in a sandboxed child, ask it for results, compare them here."""
