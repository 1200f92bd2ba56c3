"""LeetCode's linked lists and binary trees, in the words of its solutions and of its tests.

Runs inside the sandbox. Programs use `ListNode` and `TreeNode` without defining them; tests build
them with `list_node([…])` and `tree_node([…])` (level order, None for a missing child) and compare
with `is_same_list` and `is_same_tree`. Between the program's process and the tests' they travel
as their values, so that a comparison never meets an object of the program.
"""

import collections
from collections.abc import Iterator
from typing import Any

_MOST_NODES = 1 << 20
_ATTRIBUTES = {"ListNode": ("val", "next"), "TreeNode": ("val", "left", "right")}


class ListNode:
    def __init__(self, val: Any = 0, next: Any = None) -> None:  # noqa: A002 (LeetCode's name)
        self.val = val
        self.next = next


class TreeNode:
    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val = val
        self.left = left
        self.right = right


def list_node(values: Any, node: Any = ListNode) -> Any:
    """The first of the linked nodes that hold `values`; None for none."""
    head = None
    for value in reversed(list(values)):
        following, head = head, node(value)
        head.next = following
    return head


def tree_node(values: Any, node: Any = TreeNode) -> Any:
    """The root of the tree with these values in level order."""
    values = list(values)
    if not values or values[0] is None:
        return None
    root = node(values[0])
    parents = collections.deque([root])
    children = iter(values[1:])
    while parents:
        parent = parents.popleft()
        for side in ("left", "right"):
            value = next(children, None)
            if value is not None:
                setattr(parent, side, child := node(value))
                parents.append(child)
    return root


def node_values(value: Any) -> tuple[str, list[Any]] | None:
    """("list_node" or "tree_node", values) of a node of either kind; None for anything else.

    Raises ValueError where the nodes form a circle.
    """
    kind = type(value).__name__
    if kind not in _ATTRIBUTES or not all(hasattr(value, name) for name in _ATTRIBUTES[kind]):
        return None
    walk = _along(value) if kind == "ListNode" else _by_level(value)
    values = []
    for val in walk:
        values.append(val)
        if len(values) > _MOST_NODES:
            raise ValueError(f"more than {_MOST_NODES} nodes, or a circle of them")
    while kind == "TreeNode" and values[-1] is None:
        values.pop()
    return ("list_node" if kind == "ListNode" else "tree_node"), values


def _along(node: Any) -> Iterator[Any]:
    while node is not None:
        yield node.val
        node = node.next


def _by_level(root: Any) -> Iterator[Any]:
    waiting = collections.deque([root])
    while waiting:
        node = waiting.popleft()
        yield None if node is None else node.val
        if node is not None:
            waiting += [node.left, node.right]


def is_same_list(one: Any, other: Any) -> bool:
    return _values(one, ListNode) == _values(other, ListNode)


def is_same_tree(one: Any, other: Any) -> bool:
    return _values(one, TreeNode) == _values(other, TreeNode)


def _values(node: Any, kind: type) -> list[Any] | None:
    """The values of a node of this kind, [] for None; anything else equals nothing."""
    if node is None:
        return []
    found = node_values(node) if isinstance(node, kind) else None
    return found[1] if found else [object()]


FOR_PROGRAMS = {"ListNode": ListNode, "TreeNode": TreeNode}
FOR_TESTS = {
    "list_node": list_node,
    "tree_node": tree_node,
    "is_same_list": is_same_list,
    "is_same_tree": is_same_tree,
}
"""What tests may use without defining it; those that do get the two classes as well."""
