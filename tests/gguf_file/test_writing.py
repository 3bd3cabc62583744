"""GGUF files that cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import EdgespecError
from edgespec.gguf_file.writing import stored, write_file


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
@pytest.mark.parametrize("limit", [1 << 10, 1 << 16])
def test_a_file_that_the_disk_has_no_room_for_is_an_error_of_ours(tmp_path: Path, limit: int) -> None:
    import resource

    tensors = {name: stored(np.ones((64, 1 << 10), np.float32), "F32") for name in ("a.weight", "b.weight")}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(EdgespecError, match=r"cannot write .*: (the disk is full|File too large)"):
            write_file(tmp_path / "x.gguf", "llama", [], tensors)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [*tmp_path.iterdir()]
