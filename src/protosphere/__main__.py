"""``python -m protosphere`` is the command ``protosphere``."""

from protosphere.cli.app import run

run()
