"""`python -m memsim`."""

from memsim.cli import main

main()
