"""The choice of a token with seeded Gumbel noise, and the end of a row: references in torch."""
