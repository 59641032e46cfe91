"""Runs any training command, unmodified, on an imaginary GPU, and tells what it held there (`memsim.dry_run.run`)."""
