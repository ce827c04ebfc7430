"""Exact numbers out of text: token counts and picosecond times, without a float in between.

Times are scaled in decimal arithmetic and rounded once (half to even), below a picosecond only.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

from vtsim.errors import TraceFormatError
from vtsim.request import Tick

MAX_TOKENS = 2**31 - 1
"""Largest length that a request may state; a longer one is a misread column, not a prompt."""
MAX_TICK = 2**63 - 1

UNITS = {"s": 12, "ms": 9, "us": 6, "ns": 3}
"""Time unit -> power of ten of its ticks."""

_ZONE = re.compile(r"([+-])([0-9]{2})(?::?([0-9]{2}))?")
_MOST_ZONE = 14 * 60
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def scaled(value: int | Decimal, power: int) -> int:
    """`value` x 10**power as an integer, rounded half to even once; ValueError if absurd."""
    if isinstance(value, int):
        if -(10**30) < value < 10**30:
            return value * int(10**power)
        raise ValueError("is out of range")
    if not value.is_finite():
        raise ValueError("is not finite")
    if value.adjusted() > 30:
        raise ValueError("is out of range")
    if value.adjusted() < -40:
        return 0
    return int(_CONTEXT.to_integral_value(_CONTEXT.scaleb(value, power)))


def decimal_of(text: str) -> Decimal:
    """A decimal number as CSV files write it; ValueError says what is wrong."""
    text = text.strip()
    if not text:
        raise ValueError("is empty")
    if "_" in text or not text.isascii():
        raise ValueError("is not a number")
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError("is not a number") from None
    if not value.is_finite():
        raise ValueError("is not finite")
    return value


def as_count(value: object, minimum: int = 0) -> int:
    """A token count: an int, or a decimal or text with a whole value (7564.0); else ValueError."""
    number: int | Decimal
    if type(value) is int:
        number = value
    elif isinstance(value, Decimal):
        number = value
    elif isinstance(value, str):
        number = decimal_of(value)
    elif value is None:
        raise ValueError("is missing")
    else:
        raise ValueError("is not a number")
    if isinstance(number, Decimal):
        if not number.is_finite():
            raise ValueError("is not finite")
        if number.adjusted() > 30:
            raise ValueError("is too large")
        if number != number.to_integral_value():
            raise ValueError("is not a whole number")
        number = int(number)
    if number < 0:
        raise ValueError("is negative")
    if number < minimum:
        raise ValueError(f"must be at least {minimum}")
    if number > MAX_TOKENS:
        raise ValueError(f"is larger than {MAX_TOKENS}")
    return number


def as_ticks(value: object, unit: str) -> Tick:
    """A time in `unit` (s, ms, us, ns) as ticks, exact to the picosecond. ValueError if not."""
    if type(value) is int or isinstance(value, Decimal):
        number: int | Decimal = value
    elif isinstance(value, str):
        number = decimal_of(value)
    elif value is None:
        raise ValueError("is missing")
    else:
        raise ValueError("is not a number")
    return scaled(number, UNITS[unit])


def date_time_ticks(text: str) -> Tick:
    """An ISO date and time (`T` or space; any fraction; `Z`, an offset or none = UTC) in ticks
    since 1970. ValueError if it is none."""
    text = text.strip()
    head, rest = text[:19], text[19:]
    seconds = seconds_since_1970(head)
    fraction = 0
    if rest.startswith((".", ",")):  # ISO 8601 has both
        end = 1
        while end < len(rest) and rest[end].isdigit():
            end += 1
        digits = rest[1:end]
        if not digits or not digits.isascii():
            raise ValueError("is not a date and time")
        fraction = scaled(Decimal("0." + digits), 12)
        rest = rest[end:]
    return (seconds - _zone_seconds(rest.strip())) * 10**12 + fraction


def seconds_since_1970(text: str) -> int:
    """`YYYY-MM-DD hh:mm:ss` (or with `T`) in seconds since 1970, zone ignored."""
    if not (
        len(text) == 19
        and text.isascii()
        and text[4] == text[7] == "-"
        and text[10] in " T"
        and text[13] == text[16] == ":"
    ):
        raise ValueError("is not a date and time like 2023-11-16 18:15:46.68")
    parts = (text[0:4], text[5:7], text[8:10], text[11:13], text[14:16], text[17:19])
    if not all(part.isdigit() for part in parts):
        raise ValueError("is not a date and time like 2023-11-16 18:15:46.68")
    year, month, day, hour, minute, second = map(int, parts)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or year < 1:
        raise ValueError("is not a date")
    if not 1 <= day <= _DAYS_IN_MONTH[month - 1] + (leap and month == 2):
        raise ValueError("is not a date")
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("is not a time of day")
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - 719162
    days += _DAYS_BEFORE_MONTH[month - 1] + (leap and month > 2) + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def _zone_seconds(text: str) -> int:
    if text in ("", "Z", "z", "UTC"):
        return 0
    found = _ZONE.fullmatch(text)
    if found is None:
        raise ValueError("has an unknown time zone")
    hours, minutes = int(found[2]), int(found[3] or 0)
    if minutes > 59 or hours * 60 + minutes > _MOST_ZONE:
        raise ValueError("has a time zone that is none: they lie within 14 hours of UTC")
    return (-1 if found[1] == "-" else 1) * (hours * 60 + minutes) * 60


def seconds_text(ticks: Tick) -> str:
    """Ticks as a decimal number of seconds, exact and without trailing zeros (at least `.0`)."""
    sign = "-" if ticks < 0 else ""
    whole, part = divmod(abs(ticks), 10**12)
    return f"{sign}{whole}.{f'{part:012d}'.rstrip('0') or '0'}"


class Where:
    """The place in a file that is being read; turns bad values into `TraceFormatError`s."""

    __slots__ = ("line", "path", "prefix")

    def __init__(self, path: str, line: int | None = None, prefix: str = "") -> None:
        self.path = path
        self.line = line
        self.prefix = prefix

    def error(
        self,
        message: str,
        field: str | None = None,
        value: object = None,
        column: int | None = None,
    ) -> TraceFormatError:
        """The error to raise; `field` is put behind `prefix` (as in `requests[3].`)."""
        name = None if field is None else one_line(self.prefix + field)
        return TraceFormatError(
            one_line(message),
            path=self.path,
            line=self.line,
            column=column,
            field=name,
            value=_plain(value),
        )

    def count(self, value: object, field: str, minimum: int = 0) -> int:
        try:
            return as_count(value, minimum)
        except ValueError as error:
            raise self.error(str(error), field, value) from None

    def integer(self, value: object, field: str) -> int:
        """A whole number of 32 bits, negative ones too."""
        if type(value) is not int or not -(2**31) <= value < 2**31:
            raise self.error("is not a whole number of 32 bits", field, value)
        return value

    def ticks(self, value: object, field: str, unit: str, minimum: Tick | None = 0) -> Tick:
        """A time; `minimum` None admits negative ones."""
        try:
            ticks = as_ticks(value, unit)
        except ValueError as error:
            raise self.error(str(error), field, value) from None
        if minimum is not None and ticks < minimum:
            raise self.error("is negative", field, value)
        return ticks

    def date_time(self, value: object, field: str) -> Tick:
        if not isinstance(value, str):
            raise self.error(
                "is missing" if value is None else "is not a date and time", field, value
            )
        try:
            return date_time_ticks(value)
        except ValueError as error:
            raise self.error(str(error), field, value) from None


MOST_NESTED = 100
"""Levels of a free-form value: what writes it again must not run out of stack."""


def plain(value: object, levels: int = MOST_NESTED) -> object:
    """Numbers of a free-form value as floats, but for those that a float cannot hold exactly as
    they are written: these stay Decimals. ValueError if it is nested too deeply."""
    if isinstance(value, Decimal):
        number = float(value)
        same = math.isfinite(number) and Decimal(repr(number)) == value
        return number if same else value
    if type(value) is not dict and type(value) is not list:
        return value
    if not levels:
        raise ValueError("is nested too deeply")
    if type(value) is dict:
        return {key: plain(item, levels - 1) for key, item in value.items()}
    return [plain(item, levels - 1) for item in value]


def one_line(text: str) -> str:
    """A file's own words may hold line ends and what moves a terminal's cursor; a message may
    not."""
    if text.isprintable():
        return text
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


class _Number(Decimal):
    """Shown as the number that it is."""

    def __repr__(self) -> str:
        return str(self)


def _plain(value: object) -> object:
    """Decimals are shown as they stand in the file; as floats where these can hold them."""
    if not isinstance(value, Decimal):
        return value
    number = float(value)
    return number if math.isfinite(number) and Decimal(repr(number)) == value else _Number(value)
