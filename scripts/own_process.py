"""Calls of a library that may end its process, or leaves something behind in it."""

import os


def in_place(function):
    """(bytes that a function gives, "") or (b"", why not)."""
    try:
        return function(), ""
    except Exception as error:  # XLA's errors have no type of their own.
        return b"", str(error) or "refused"


def in_child(function, quiet=False):
    """The same, of a child process; quiet ones write no errors of their own."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        if quiet:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(write_end, "wb") as out:
            result, error = in_place(function)
            out.write(b"+" + result if result else b"-" + error.encode())
            out.flush()
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as result:
        answer = result.read()
    os.waitpid(child, 0)
    if answer.startswith(b"+"):
        return answer[1:], ""
    return b"", answer[1:].decode(errors="replace") or "ends its process"
