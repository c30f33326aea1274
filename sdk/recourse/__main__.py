import sys

from recourse.cli import main

sys.exit(main())
