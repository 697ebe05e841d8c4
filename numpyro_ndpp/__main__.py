"""``python -m numpyro_ndpp``: see :mod:`numpyro_ndpp.command_line`."""

import sys

from numpyro_ndpp.command_line import main

if __name__ == "__main__":
    sys.exit(main())
