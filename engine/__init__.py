"""The device: target models, attention backends, KV pools, row tables, noise, the plain worker, and the lanes that
carry plans.
"""
