"""``python -m spark_rocket.cli`` is ``rocket``."""

import sys

from spark_rocket.cli.main import main

sys.exit(main())
