"""`python -m trainyard_trainer.launch`: the same as `trainyard-launch`."""

import sys

from trainyard_trainer.launch.main import main

if __name__ == "__main__":
    sys.exit(main())
