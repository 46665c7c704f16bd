"""Heads on disk: every known format becomes one normal form; the registry and the card of a head."""
