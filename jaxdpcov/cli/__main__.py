"""`python -m jaxdpcov.cli`: the command line without its script."""

import sys

from jaxdpcov.cli import main

sys.exit(main())
