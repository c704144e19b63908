"""`python3 DIRECTORY run FILE` with this directory: as `python3 -m brisk`, but whatever lies in the working directory.

With -m, a brisk.py or json.py there would be imported in place of Brisk's and Python's own.
"""

import sys

from brisk._run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
