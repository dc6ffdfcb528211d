"""`python -m contract`."""

import sys

from contract.cli import main

if __name__ == "__main__":
    sys.exit(main())
