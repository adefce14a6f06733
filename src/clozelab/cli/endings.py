"""How a command ends that did not do its work: a sentence, and the exit code that goes with it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from signal import SIGTERM

from clozelab.errors import UserError
from clozelab.interrupts import Stopped, signal_of
from clozelab.options import DEBUG

_GONE = "Connection closed by peer"  # what torch.distributed says then
_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EEXIST: "name another",
    errno.EACCES: "name another place, or change its permissions",
    errno.EPERM: "name another place, or change its permissions",
    errno.EROFS: "name a place that can be written",
    errno.ENOSPC: "free some space, then run the same command again",
    errno.EDQUOT: "free some space, then run the same command again",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ELOOP: "check where its links lead",
    errno.EMFILE: "allow more open files (ulimit -n)",
}


def ending(error: BaseException) -> tuple[str, int]:
    """What is said of an error, and the code that the process ends with."""
    if isinstance(error, Stopped):
        return str(error), 128 + error.signal
    if isinstance(error, UserError):
        return str(error), 2
    if isinstance(error, KeyboardInterrupt):
        number = signal_of(error)
        return "terminated" if number == SIGTERM else "interrupted", 128 + number
    if isinstance(error, OSError):
        return _system(error), 2
    if isinstance(error, UnicodeEncodeError) and isinstance(error.object, str):
        around = error.object[max(0, error.start - 40) : error.end + 40]
        return f"{' '.join(around.split())}: is not UTF-8; rename it, or convert it", 2
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "memory is exhausted; give the command less at once, or use a larger machine", 2
    if isinstance(error, RuntimeError) and _GONE in str(error):
        return "another process of this command has ended, and says why", 2
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package != "clozelab":
            return f"{package} is not installed; pip install {package}", 2
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{line}; this is a fault in clozelab: set {DEBUG}=1 to see where, and report it", 1


def _system(error: OSError) -> str:
    """Place, problem and remedy of what the system refused."""
    names = (error.filename2, error.filename)
    names_said = [os.fsdecode(name) for name in names if isinstance(name, str | bytes | Path)]
    place = f"{names_said[0]}: " if names_said else ""
    problem = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "fix that, then run the same command again")
    return f"{place}{problem}; {remedy}"
