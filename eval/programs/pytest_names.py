"""What tests written for pytest use of it, where pytest is not: the sandbox runs this text."""

import re as _re


class pytest:
    class raises:
        def __init__(self, expected_exception, match=None):
            self.expected, self.match, self.value = expected_exception, match, None

        def __enter__(self):
            return self

        def __exit__(self, kind, value, traceback):
            assert kind is not None, "the program raises nothing"
            self.type, self.value = kind, value
            fits = self.match is None or _re.search(self.match, str(value)) is not None
            return isinstance(value, self.expected) and fits

    class approx:
        def __init__(self, expected, rel=None, abs=None):  # noqa: A002
            self.expected = expected
            self.rel = 1e-6 if rel is None and abs is None else rel or 0
            self.abs = 1e-12 if abs is None else abs

        def __eq__(self, other):
            return self.close(self.expected, other)

        def close(self, a, b):
            if isinstance(a, dict):
                return a.keys() == b.keys() and all(self.close(a[k], b[k]) for k in a)
            if isinstance(a, list | tuple):
                return len(a) == len(b) and all(map(self.close, a, b))
            return a == b or abs(a - b) <= max(self.rel * abs(a), self.abs)

    def fail(self="", pytrace=True):
        raise AssertionError(self)
