"""This folder is on the import path, so that tests in it can use ``stability_examples``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # for stability_pictures
