"""`python -m flows.cli` is the command `klear`."""

import sys

from flows.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
