"""ReFrame's configuration of the site that this is (or ``$HIDL_SITE``): ``reframe -C reframe_checks/settings.py ...``.

``hidl validate`` writes one of its own; this one is for plain ``reframe``.
"""

import os

from hidl_cli.validate.settings import plain

site_configuration = plain(os.environ.get("HIDL_SITE"))
