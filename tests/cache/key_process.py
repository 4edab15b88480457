"""Prints the keys of a source file's models, for a test that compares processes.

The file gives ``CASES``: names to functions that return a model, its arguments and how to capture.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch

from tests.cache.graphs import capture


def main(path, names):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = {}
    for name in names:
        torch.manual_seed(len(names[0]))  # weights differ from process to process
        model, args, how = module.CASES[name]()
        for captured in capture(model, *args, at=lambda c: (c.stage, c.key()), **how):
            stage, key = captured
            parts = getattr(key, "parts", None) or [["bypass", key.reason, key.reason]]
            found[f"{name} {stage}"] = {part: (hashed, text) for part, hashed, text in parts}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
