"""What runs inside the watched program: PyTorch's own memory history, and what the program was doing at each moment.

This package is loaded by whatever Python the user's command starts, where memsim need not be installed: its modules use
the standard library, torch once the program has imported it, and each other, nothing else of memsim. Nothing here
allocates device memory, and no tensor is kept alive.
"""
