"""SGLang behind Aerie: its models under Aerie's scheduler, and its whole engine behind Aerie's front end.

The only folder that imports sglang; its modules import it only when a config asks for it.
"""
