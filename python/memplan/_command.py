"""The command ``memplan``, as the wheel installs it."""

import signal
import sys

from memplan import _memplan


def main() -> int:
    """Runs the command with the arguments of this process and gives its exit status."""
    # The command has no Python in it that could look for Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _memplan.command(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
