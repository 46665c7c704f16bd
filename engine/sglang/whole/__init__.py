"""SGLang's own engine behind Aerie's front end, joined at the wire messages of `contracts`.

The scheduler, the noise and the attention of Aerie have no part here: SGLang schedules, drafts and samples, on as many
ranks and machines as its section says. The front end does not know the difference, but /config tells it.
"""
