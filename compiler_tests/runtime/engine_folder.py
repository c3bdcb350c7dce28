"""Prints what the proof of a frozen model says of an engine, such as a judge, and two folders.

Run by test_engine_folder. Argument: an empty folder.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from small_engine import small_engine

from forgedsl.errors import RunError
from forgedsl.shipped import shipped_root
from forgedsl_runtime.proofs import frozen


def told(folder: Path, held: list) -> dict:
    try:
        found = frozen.check_parts(folder, held)
    except RunError as error:
        return {"error": str(error).replace(str(folder), "FOLDER")}
    return {"tensors": found.tensors, "proved": found.proved}


def main() -> None:
    place, model = Path(sys.argv[1]), shipped_root() / "models/tiny_math"
    engine = small_engine(model, place / "rendezvous", record=True)
    (file,) = model.glob("*.safetensors")
    weights = load_file(file)
    last = max(weights)
    found = {"own": told(model, engine.base)}
    weights[last].view(torch.uint8).view(-1)[7] ^= 1
    (place / "one_bit").mkdir()
    save_file(weights, place / "one_bit/model.safetensors")
    found["one bit"] = told(place / "one_bit", engine.base)
    found["named"] = last in json.dumps(found["one bit"])
    print("RESULT" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
