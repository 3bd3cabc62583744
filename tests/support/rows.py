"""Rows of logits that must not be changed, and chains that take them as they are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgespec.core.sampling import FloatRow, SamplingSettings

OFF = SamplingSettings(temperature=1, top_k=0, top_p=1, min_p=0)
GREEDY = SamplingSettings(temperature=0)


def frozen(values: npt.ArrayLike) -> FloatRow:
    row = np.array(values, np.float32)
    row.flags.writeable = False
    return row
