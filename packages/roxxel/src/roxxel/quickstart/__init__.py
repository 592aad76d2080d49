"""`roxxel quickstart`: the main job on real input, with nothing to download.

The sources of Python's own standard library become a corpus, a small transformer is
trained on it through a curriculum of two phases, and the run can be killed and started
again at any moment. Written to be read: it uses the public names of Roxxel only.
"""

from __future__ import annotations
