"""How well colors can be told apart, and from what is behind them."""

import itertools
import math
from collections.abc import Sequence

Color = tuple[float, float, float]

SIGHTS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "protan": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
    ),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}  # fmt: skip
"""Machado, Oliveira and Fernandes (2009), of severity 1, on linear light."""
_TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.072175),
    (0.0193339, 0.119192, 0.9503041),
)
_WHITE = (0.95047, 1.0, 1.08883)


def linear(color: str) -> Color:
    """Return the linear light of a color such as "#1b298b"."""
    parts = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)  # noqa: PLR2004 - of sRGB
    return red, green, blue


def contrast(color: str, behind: str) -> float:
    """Return the contrast ratio of two colors, as WCAG 2 defines it.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    low, high = sorted(_apply((_TO_XYZ[1],), linear(each))[0] for each in (color, behind))
    return round((high + 0.05) / (low + 0.05), 3)


def distance(one: str, other: str, sight: str = "") -> float:
    """Return the CIEDE2000 distance of two colors, as one with a kind of color blindness sees them.

    >>> round(distance("#ff0000", "#00ff00"), 1)
    86.6
    """
    return _ciede2000(_lab(_seen(one, sight)), _lab(_seen(other, sight)))


def least_distance(colors: Sequence[str], sight: str = "", *, neighbours: bool = False) -> float:
    """Return the distance of the two colors that are most alike; of a ramp, of two neighbours."""
    pairs = itertools.pairwise(colors) if neighbours else itertools.combinations(colors, 2)
    return min(distance(one, other, sight) for one, other in pairs)


def _seen(color: str, sight: str) -> Color:
    light = linear(color)
    if not sight:
        return light
    red, green, blue = (min(1.0, max(0.0, part)) for part in _apply(SIGHTS[sight], light))
    return red, green, blue


def _apply(matrix: Sequence[Sequence[float]], color: Color) -> list[float]:
    return [sum(factor * part for factor, part in zip(row, color, strict=True)) for row in matrix]


def _lab(light: Color) -> Color:
    parts = [part / white for part, white in zip(_apply(_TO_XYZ, light), _WHITE, strict=True)]
    x, y, z = (math.cbrt(part) if part > 0.008856 else 7.787 * part + 16 / 116 for part in parts)  # noqa: PLR2004 - of CIELAB
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _ciede2000(one: Color, other: Color) -> float:
    """Return the distance of two colors in CIELAB: Sharma, Wu and Dalal (2005)."""
    (light_1, a_1, b_1), (light_2, a_2, b_2) = one, other
    mean = (math.hypot(a_1, b_1) + math.hypot(a_2, b_2)) / 2
    scale = 1.5 - 0.5 * math.sqrt(mean**7 / (mean**7 + 25**7))
    chroma_1, chroma_2 = math.hypot(scale * a_1, b_1), math.hypot(scale * a_2, b_2)
    hue_1, hue_2 = (math.degrees(math.atan2(b, scale * a)) % 360 for a, b in ((a_1, b_1), (a_2, b_2)))
    turn = (hue_2 - hue_1 + 180) % 360 - 180
    hue = 2 * math.sqrt(chroma_1 * chroma_2) * math.sin(math.radians(turn / 2))
    light, chroma = (light_1 + light_2) / 2, (chroma_1 + chroma_2) / 2
    angle = (hue_1 + hue_2 + (360 if abs(hue_1 - hue_2) > 180 else 0)) / 2  # noqa: PLR2004 - half a turn
    if not chroma_1 * chroma_2:
        angle, hue = hue_1 + hue_2, 0.0
    tone = (
        1
        - 0.17 * _cos(angle - 30)
        + 0.24 * _cos(2 * angle)
        + 0.32 * _cos(3 * angle + 6)
        - 0.2 * _cos(4 * angle - 63)
    )
    by_light = (light_2 - light_1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2))
    by_chroma = (chroma_2 - chroma_1) / (1 + 0.045 * chroma)
    by_hue = hue / (1 + 0.015 * chroma * tone)
    rotation = -2 * math.sqrt(chroma**7 / (chroma**7 + 25**7))
    rotation *= math.sin(math.radians(60 * math.exp(-(((angle - 275) / 25) ** 2))))
    return math.sqrt(by_light**2 + by_chroma**2 + by_hue**2 + rotation * by_chroma * by_hue)


def _cos(degrees: float) -> float:
    return math.cos(math.radians(degrees))
