"""`python -m train STAGE CONFIG`: runs one stage of a training config."""

import sys
from pathlib import Path

from train.config import load_config
from train.pretrain import pretrain

if __name__ == "__main__":
    stage, path = sys.argv[1:]
    config = load_config(Path(path))
    {"target": lambda: pretrain(config.target)}[stage]()
