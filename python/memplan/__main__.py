"""``python -m memplan``."""

import sys

from memplan._command import main

sys.exit(main())
