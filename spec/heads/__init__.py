"""Draft heads as modules: the EAGLE-3 forward pass, its config, the draft vocabulary, and SGLang's head."""
