"""The device side: target models, attention backends, KV pools, row tables, Gumbel noise, the plain worker, and the
lanes that carry plans.
"""
