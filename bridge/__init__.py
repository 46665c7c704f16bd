"""SGLang's own engine behind Aerie's front end, joined at the wire messages of `contracts`.

Aerie's scheduler, Gumbel noise and attention are not used: SGLang schedules, drafts and samples, on as many ranks and
machines as the `sglang` section says. The front end works the same way; /config shows which engine runs.
"""
