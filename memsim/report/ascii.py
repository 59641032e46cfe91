"""What stands for the characters of tables and drawings where an encoding lacks them."""

from __future__ import annotations

ASCII = str.maketrans(dict(zip("█▇▆▅▄▃▂▁░─│┤└", "########.-||+", strict=True)))
"""For `str.translate`."""
