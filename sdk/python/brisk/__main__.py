"""`python3 -m brisk run FILE[::NAME]`: what the brisk command becomes for running Python files."""

import sys

from brisk._run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
