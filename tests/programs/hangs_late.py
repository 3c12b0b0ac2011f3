"""The program ``toy``, which in the second repetition of a study of two sizes does not end."""

import runpy
import time
from pathlib import Path

if Path("steps/3").exists():
    time.sleep(600)
runpy.run_path(str(Path(__file__).with_name("toy.py")), run_name="__main__")
