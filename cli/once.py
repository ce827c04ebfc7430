"""Commands that refuse an option given twice, where only one of the two could hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

from typer.core import TyperCommand

from vtsim.errors import ConfigError


class Once(TyperCommand):
    """`--from a --from b` is an error; options that may be repeated, and flags, are not told."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the class above does; ConfigError names the option."""
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for option, times in Counter(given).items():
                single = not getattr(option, "multiple", False) and option.nargs == 1
                if option.param_type_name == "option" and single and times > 1:
                    if not getattr(option, "is_flag", False):
                        raise ConfigError(f"{option.opts[0]} is given {times} times")
        return super().parse_args(ctx, args)
