"""The routes, one file for each group. Each parses a body, calls the part that does the work, and answers."""
