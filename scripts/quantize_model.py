"""Quantise a model and save it, for the compiler and for other systems to read.

    python scripts/quantize_model.py --model resnet50 --calibrate random --output resnet50-int8.pt2
    python scripts/bench.py --models resnet50-int8.pt2 --peers onnxruntime,openvino --trials 0

The file is what ``--dtype int8`` would compile; ``bench.py`` hands the same model to its peers as
QDQ ONNX.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tvmfuse.config import OBSERVERS
from tvmfuse.errors import OptionError, TvmfuseError


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; raises OptionError for a file of another kind."""
    parser = argparse.ArgumentParser(
        prog="quantize_model.py", description=(__doc__ or "").split("\n\n")[0]
    )
    add = parser.add_argument
    add("--model", required=True, help="as tvmfuse compile takes it")
    add("--weights", help="a state dict, or 'random'")
    add("--calibrate", required=True, help="module:function, or 'random'")
    add("--observer", choices=OBSERVERS, default=OBSERVERS[0])
    add("--seed", type=int, default=0)
    add("--output", required=True, type=Path, metavar="FILE.pt2")
    options = parser.parse_args(argv)
    if options.output.suffix != ".pt2":
        raise OptionError(f"--output {options.output} must end in .pt2")
    return options


def quantize(options: argparse.Namespace) -> dict[str, Any]:
    """Write the file; returns what the quantisation rests on."""
    import torch

    from tvmfuse.frontend.models import load_model
    from tvmfuse.frontend.torch_export import export_program
    from tvmfuse.precision.quantize import quantised_reference

    loaded = load_model(options.model, weights=options.weights, seed=options.seed)
    program = loaded.program or export_program(loaded.module, loaded.example_inputs)
    made = quantised_reference(
        loaded._replace(program=program), options.calibrate, options.observer, options.seed
    )
    torch.export.save(made.program, options.output)
    account: dict[str, Any] = made.provenance["quantization"]
    return account


def main(argv: list[str] | None = None) -> int:
    """Run; the account goes to stdout as JSON."""
    try:
        account = quantize(parse(sys.argv[1:] if argv is None else argv))
    except TvmfuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(account, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
