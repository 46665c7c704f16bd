"""Makes a folder that any server serves with random weights: a shape of configs/shape with a tokenizer that fills it.

    python scripts/gpu_shape.py configs/shape/llama-3.1-8b build/gpu-shape

Uses the demo's tokenizer and fills its vocabulary with artificial words, so that any output of random weights is text.
The folders of target and head are both in the second folder. configs/sweep/gpu-simulated.yaml serves them.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
TOKENIZER = HOME / "models/demo/target"


def make(shape: Path, out: Path, widened: int | None = None) -> None:
    """`widened`: a vocabulary in place of the shape's own."""
    configs = {part: json.loads((shape / part / "config.json").read_text("utf-8")) for part in ("target", "head")}
    vocabulary = widened or configs["target"]["vocab_size"]
    for part, config in configs.items():
        (out / part).mkdir(parents=True, exist_ok=True)
        (out / part / "config.json").write_text(json.dumps(config | {"vocab_size": vocabulary}), encoding="utf-8")
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    ids = 1 + max(*words.values(), *(token["id"] for token in tokenizer["added_tokens"]))
    if vocabulary < ids:
        sys.exit(f"{shape} has {vocabulary} ids and the demo's tokenizer {ids}: take a shape with as many")
    words |= {f"Ġw{token}": token for token in range(ids, vocabulary)}
    (out / "target/tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOKENIZER / name, out / "target" / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=Path, help="a folder of configs/shape")
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=int, help="in place of the shape's: at least the demo's")
    given = parser.parse_args()
    make(given.shape, given.out, given.vocabulary)
    print(f"{given.out}/target and {given.out}/head: random weights of {given.shape.name}")
