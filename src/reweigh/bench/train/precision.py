"""The number formats that a training may compute in; apart from the devices, whose module takes torch to import."""

from typing import Literal

Precision = Literal["float32", "bfloat16", "float16"]
