import sys

from diptych_service.cli import main

sys.exit(main())
