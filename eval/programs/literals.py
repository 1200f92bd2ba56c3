"""Python values as texts spell them, also as numpy prints arrays, which pandas writes to CSV."""

import ast
import io
import re
import tokenize
from typing import Any

_OF_NUMPY = re.compile(r"""['"]\s+['"]|\}\s+\{|\barray\(""")


class _Lists(ast.NodeTransformer):
    """`array(['a'], dtype=object)` is its list."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_array = isinstance(node.func, ast.Name) and node.func.id == "array"
        return node.args[0] if is_array and node.args else node


def literal(text: str) -> Any:
    """The value; `['a' 'b']` is a list of two, and not the one text that Python reads. Raises
    ValueError, SyntaxError or what else `ast` does."""
    if not _OF_NUMPY.search(text):
        return ast.literal_eval(text)
    parts, last, kind = list[str](), "", 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline):
            if token.type == kind == tokenize.STRING or (last, token.string) == ("}", "{"):
                parts.append(",")
            if token.string == "...":
                raise ValueError("numpy left out values")
            if token.string.strip():
                parts.append(token.string)
                last, kind = token.string, token.type
    except tokenize.TokenError as error:
        raise ValueError(str(error)) from error
    return ast.literal_eval(_Lists().visit(ast.parse(" ".join(parts), mode="eval")))
