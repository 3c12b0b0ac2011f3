"""ReFrame's configuration of the site that this is (or ``$HIDL_SITE``): ``reframe -C reframe_checks/settings.py ...``.

``hidl validate`` writes one of its own; this one is for plain ``reframe``.
"""

import os
import sys

from hidl_cli.errors import HidlError
from hidl_cli.validate.settings import plain

try:
    site_configuration = plain(os.environ.get("HIDL_SITE"))
except HidlError as error:
    sys.exit(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
