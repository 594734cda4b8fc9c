"""Run ``rocket`` as ``python -m spark_rocket.cli``."""

import sys

from spark_rocket.cli.main import main

sys.exit(main())
