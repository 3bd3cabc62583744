"""`python -m edgespec`."""

import sys

from edgespec.cli import main

if __name__ == "__main__":
    sys.exit(main())
