"""Offline training: a target from text, then a draft head for the target. Serving code never imports this package."""
