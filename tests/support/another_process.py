"""Running code in another Python process, to be killed or to have its own terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pufferfish_bench


def in_another_process(code, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(Path(pufferfish_bench.__file__).parents[1]), "TERM": "xterm"}
    code = f"import sys\nfrom pathlib import Path\nfrom pufferfish_bench.tasks.images.download import extract, fetch\n{code}"
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=environment, **options)
