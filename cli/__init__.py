"""The command line tool. pyinfra is told before it is imported that nothing turns here."""

import os

# Its spinner writes into what we print, also where the terminal cannot take a line back.
os.environ.setdefault("PYINFRA_PROGRESS", "off")
