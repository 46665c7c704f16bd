"""SGLang behind Aerie: its models under Aerie's scheduler, and its whole engine behind Aerie's front end.

The only folder that imports sglang, and none of its modules does so before a config asks for it.
"""
