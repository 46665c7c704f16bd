"""Labels for what is not real about a deployment, shown in capitals in the log, in /config and in every report.

Called by everything that shows or writes what a deployment did. Invariant: a number from dummy weights or simulated
acceptance never appears without its label.
"""

from aerie.contracts.config import Config


def labels(config: Config) -> dict[str, str]:
    """Labels by subject; empty for a deployment with trained weights and checked acceptance."""
    found = {}
    if config.model.weights == "dummy":
        found["weights"] = "DUMMY WEIGHTS: RANDOM NUMBERS, THE TEXT IS NONSENSE"
    if config.spec.simulate_acceptance is not None:
        found["acceptance"] = f"SIMULATED ACCEPTANCE {config.spec.simulate_acceptance:g}: THE TEXT IS NONSENSE"
    return found
