"""`python -m devicekit`: the same as the command `devicekit`."""

import sys

from devicekit.cli import main

if __name__ == "__main__":
    sys.exit(main())
