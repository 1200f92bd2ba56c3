"""Functions compiled to machine code by numba; the code is kept in the user's cache folder.

Importing numba takes a third of a second, so modules that use this are imported where they are
needed and not at the top of a file.
"""

import pickle
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.core.config

F = TypeVar("F", bound=Callable[..., Any])
_CONFIG = cast(Any, numba.core.config)


def compiled(signature: Any) -> Callable[[F], F]:
    """Compile for exactly these types when the module is imported, or load what an earlier import
    compiled.

    The cache is `NUMBA_CACHE_DIR` if set and else the user's (~/.cache/numba), never the source
    tree, so a read-only installation works. Where no folder can be written each process compiles
    for itself, in seconds.
    """

    def wrap(function: F) -> F:
        chosen = _CONFIG.CACHE_LOCATOR_CLASSES
        if not _CONFIG.CACHE_DIR:
            _CONFIG.CACHE_LOCATOR_CLASSES = "UserWideCacheLocator"
        try:
            return cast(F, numba.njit(signature, cache=True, nogil=True)(function))
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError):
            # No folder for the cache, a full disk, or a damaged file in it.
            return cast(F, numba.njit(signature, nogil=True)(function))
        finally:
            _CONFIG.CACHE_LOCATOR_CLASSES = chosen

    return wrap
