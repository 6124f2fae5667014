"""Take a lock, say so, and hold it until standard input ends: ``lock_holder.py PATH [shared|fork]``."""

from __future__ import annotations

import os
import sys

from kreg.keylock import FileLock

if __name__ == "__main__":
    path, *how = sys.argv[1:]
    with FileLock(path, shared=how == ["shared"], wait=0) as held:
        if how == ["fork"] and os.fork() == 0:
            os._exit(0)
        if how == ["fork"]:
            os.wait()
        print(held, flush=True)
        sys.stdin.read()
