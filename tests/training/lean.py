"""`python lean.py SCRIPT …`: the script, in a process that imports as little as `run_job` does."""

import runpy
import sys

from klear.training.launch.run_job import hide_unneeded

if __name__ == "__main__":
    hide_unneeded()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
