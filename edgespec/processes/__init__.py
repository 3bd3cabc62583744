"""Child processes that do what may crash, hang or take all of the memory."""
