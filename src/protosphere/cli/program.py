"""How the user starts this program, for commands that are printed to be typed."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def program_name() -> str:
    """Return ``protosphere``, or how this program was started where that would not be found.

    A program in an environment that is not activated (``.venv/bin/protosphere``) is not on the
    search path of the shell.
    """
    path = Path(sys.argv[0])
    if path.parts[-2:] == ("protosphere", "__main__.py"):
        return "python -m protosphere"
    if path.stem != "protosphere":  # Another program calls this one.
        return "protosphere"
    found = shutil.which(path.name)
    if found is not None and os.path.realpath(found) == os.path.realpath(path):
        return "protosphere"
    return shlex.quote(str(path))
