"""Convolutions whose weights come in panels of the channels of their result.

``python.panel_convolution`` is ``aten.convolution`` but for its weight, which is
[panels, channels of one, channels of the image, …taps]: a kernel that does a panel at a time reads
its part of memory from one end to the other.
"""

from __future__ import annotations

NAME = "python.panel_convolution"
