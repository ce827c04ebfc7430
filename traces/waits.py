"""Who waits for whom in a closed loop: an order for rows that have no arrival of their own."""

from __future__ import annotations

from collections.abc import Mapping


def inherit_keys(keys: list[int], after: Mapping[int, tuple[int, ...]]) -> None:
    """Sets the key of every waiting row to the largest key of the rows that it waits for.

    In place. Raises ValueError with a row that waits for itself, directly or through others.
    """
    state: dict[int, int] = {}  # 1: its parents are being worked out, 2: done
    for start in after:
        stack = [start]
        while stack:
            row = stack[-1]
            if row not in after or state.get(row) == 2:
                stack.pop()
            elif state.get(row) == 1:
                keys[row] = max(keys[parent] for parent in after[row])
                state[row] = 2
                stack.pop()
            else:
                state[row] = 1
                for parent in after[row]:
                    if state.get(parent) == 1:
                        raise ValueError(parent)
                    if parent in after and state.get(parent) != 2:
                        stack.append(parent)
