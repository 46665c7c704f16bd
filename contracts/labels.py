"""What is not real about a deployment: said in capitals in the log, in /config and in every report.

Called by whoever shows or writes what a deployment did. Invariant: a number of dummy weights or of simulated acceptance
never stands without its label.
"""

from contracts.config import Config


def labels(config: Config) -> dict[str, str]:
    """By what it concerns; empty for a deployment whose weights and acceptance are its own."""
    found = {}
    if config.model.weights == "dummy":
        found["weights"] = "DUMMY WEIGHTS: RANDOM NUMBERS, THE TEXT IS NONSENSE"
    if config.spec.simulate_acceptance is not None:
        found["acceptance"] = f"SIMULATED ACCEPTANCE {config.spec.simulate_acceptance:g}: THE TEXT IS NONSENSE"
    return found
