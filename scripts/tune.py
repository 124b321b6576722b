"""The main job: ``python scripts/tune.py --model resnet50 --target llvm`` = ``tvmfuse tune``."""

from __future__ import annotations

import sys

from tvmfuse.cli import main

if __name__ == "__main__":
    sys.exit(main(["tune", *sys.argv[1:]]))
