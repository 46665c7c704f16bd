"""What an answer consists of: reasoning, content and tool calls, parsed out of its text as it grows."""
