"""How drafts are made. `drafter` is the protocol, `registry` has the kinds: EAGLE-3 drafts level by level, P-EAGLE all
levels in one pass.
"""
