"""HTTP below the API: the parser's bounds, ids, keys, closed connections, and errors in one shape."""
