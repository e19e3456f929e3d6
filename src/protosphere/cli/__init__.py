"""The ``protosphere`` command: one file per command, heavy imports only when a command runs."""
