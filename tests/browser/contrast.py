"""What can be told apart on a page, measured: each text, glyph, field and drawing against what really lies behind it.

The colour in front is the computed one, with every opacity on its way; the colour behind is the most frequent one of
the pixels there, whatever put it there: a gradient, a selected row, a drawing. WCAG 2.2 AA: text 4.5, large text and
whatever is no text 3. What is `disabled` is exempt there; what is only said to be, as the console does it, is not.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image

from tests.browser.looking import Window

TEXT, OTHER = 4.5, 3.0
TALLEST = 12_000  # pixels of a page that are looked at
# what is drawn and means something; a grid, or the tint behind a span of time, only helps the eye
DRAWN = "svg :is(.bar:not(.faded), .tick, .knot, .way, .edge, .now), svg.icon > path, .brand svg > path"
FIND = """([drawn, within]) => {
  const root = document.querySelector(within);
  const point = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    point.clearRect(0, 0, 1, 1);
    point.fillStyle = colour;
    point.fillRect(0, 0, 1, 1);
    return [...point.getImageData(0, 0, 1, 1).data];
  };
  const faded = (part) => part ? Number(getComputedStyle(part).opacity) * faded(part.parentElement) : 1;
  const front = (part, colour) => { const [r, g, b, a] = rgba(colour); return [r, g, b, a / 255 * faded(part)]; };
  const called = (part) => `${part.tagName.toLowerCase()}.${[...part.classList].join(".")} `
    + `"${part.textContent.trim().slice(0, 40)}" in ${part.closest("[id]")?.id ?? "no id"}`;
  // what another part, or an edge, hides is not looked at by anybody
  const seen = (part, x, y) => {
    const top = document.elementFromPoint(x, y);
    return top && (part.contains(top) || (getComputedStyle(part).pointerEvents === "none" && top.contains(part)));
  };
  const visible = (part) => part.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const NO_TEXT = "[type=hidden], [type=checkbox], [type=radio], [type=file], [type=submit]";
  const found = [];
  const note = (kind, part, colour, box, large) =>
    found.push({kind, called: called(part), fronts: [front(part, colour)], box, large: Boolean(large)});
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const measured = window.measuredParts = new Set();
  for (let node; (node = texts.nextNode());) {
    const part = node.parentElement;
    if (!node.data.trim() || !visible(part) || part.closest("script, style, option, .sr, :disabled")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const [box] = [...range.getClientRects()].filter((one) => one.width >= 2 && one.height >= 4);
    if (!box || !seen(part, box.left + 1, box.top + box.height / 2)) continue;
    const style = getComputedStyle(part);
    const size = parseFloat(style.fontSize);
    measured.add(part);
    const there = [box.left, box.top, Math.min(box.width, 80), box.height];
    note("text", part, part instanceof SVGElement ? style.fill : style.color, there,
      size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700));
  }
  for (const part of root.querySelectorAll("*")) {
    if (!visible(part) || part.closest(".sr, :disabled")) continue;
    const box = part.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;
    for (const side of ["::before", "::after"]) {
      const style = getComputedStyle(part, side);
      const text = /^"(.+?)"/.exec(style.content)?.[1];
      if (!text || !seen(part, box.left + box.width / 2, box.top + box.height / 2)) continue;
      const isWord = /[a-z0-9]/i.test(text);
      note(isWord ? "words" : "glyph", part, style.color, [box.left, box.top, box.width, box.height], !isWord);
    }
    if (!part.matches(`input:not(${NO_TEXT}), select, textarea`)) continue;
    if (!seen(part, box.left + box.width / 2, box.top + box.height / 2)) continue;
    const style = getComputedStyle(part);
    const inside = [box.left + 2, box.top + 2, Math.min(box.width - 4, 80), box.height - 4];
    if (part.value) note("value", part, style.color, inside);
    else if (part.placeholder) note("placeholder", part, getComputedStyle(part, "::placeholder").color, inside);
    const above = [box.left + 8, box.top - 3, 24, 2];
    const isBare = parseFloat(style.borderTopWidth) && part !== document.activeElement; // its ring is another edge
    if (isBare) note("edge", part, style.borderTopColor, above, true);
  }
  for (const part of root.querySelectorAll(drawn)) {
    const around = part.ownerSVGElement.getBoundingClientRect();
    if (!visible(part) || around.width < 2 || !seen(part.ownerSVGElement, around.left + 1, around.top + 1)) continue;
    const style = getComputedStyle(part);
    const fronts = [style.fill, style.stroke].filter((one) => one !== "none").map((one) => front(part, one));
    const box = [around.left, around.top - 3, Math.min(around.width, 40), 2];
    found.push({kind: "drawn", called: called(part), fronts, box, large: true});
  }
  return found;
}"""
LEFT_OPEN = """() => axe.run(document, {runOnly: {type: "rule", values: ["color-contrast"]},
    resultTypes: ["incomplete"]}).then((found) => found.incomplete.flatMap((rule) => rule.nodes).filter((node) => {
    const part = document.querySelector(node.target.join(" "));
    const own = [...part.childNodes].some((one) => one.nodeType === Node.TEXT_NODE && one.data.trim());
    const box = part.getBoundingClientRect();
    const top = document.elementFromPoint(box.left + 1, box.top + box.height / 2);
    return own && part.contains(top) && !part.closest("select, :disabled") && !window.measuredParts.has(part);
  }).map((node) => node.html.slice(0, 160)))"""

Colour = tuple[float, ...]


def faint(one: Window, *, within: str = "body") -> list[str]:
    """What has too little contrast on the page as it is now, a line for each kind of part and pair of colours."""
    size = one.page.viewport_size
    height = one.page.evaluate("document.documentElement.scrollHeight")
    one.page.set_viewport_size({"width": size["width"], "height": min(max(height, size["height"]), TALLEST)})
    parts = one.page.evaluate(FIND, [DRAWN, within])
    # to hide the caret would leave an empty `style` at each field; it is a line, and never the most frequent colour
    image = Image.open(BytesIO(one.page.screenshot(caret="initial"))).convert("RGB")
    one.page.set_viewport_size(size)
    assert parts, "nothing on the page was measured"
    wrong: dict[tuple[Any, ...], str] = {}
    for part in parts:
        behind = _behind(image, part["box"])
        if behind is None:
            continue
        # a drawing is seen by its edge or by what fills it
        ratio, front = max((contrast(front, behind), front) for front in (_over(one, behind) for one in part["fronts"]))
        least = OTHER if part["large"] else TEXT
        if ratio < least:
            pair = (part["kind"], tuple(map(round, front)), behind)
            told = f"{part['kind']} {part['called']}: {ratio:.2f} of {least}, {_hex(front)} on {_hex(behind)}"
            wrong.setdefault(pair, told)
    return list(wrong.values())


def left_open(one: Window) -> list[str]:
    """The texts of which axe-core cannot say what lies behind them, and that `faint` has not measured either."""
    one.bring_axe()
    one.page.evaluate(FIND, [DRAWN, "body"])
    found: list[str] = one.page.evaluate(LEFT_OPEN)
    return found


def contrast(front: Colour, behind: Colour) -> float:
    """WCAG's ratio of two colours of sRGB, 0 to 255: 1 of the same ones, 21 of black on white."""
    light, dark = sorted((_luminance(front), _luminance(behind)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _over(front: list[float], behind: Colour) -> Colour:
    """What is seen of a colour with an opacity, 0 to 1, before another one."""
    *colour, alpha = front
    return tuple(alpha * mine + (1 - alpha) * theirs for mine, theirs in zip(colour, behind, strict=True))


def _luminance(colour: Colour) -> float:
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _behind(image: Image.Image, box: list[float]) -> tuple[int, int, int] | None:
    """The most frequent colour there; none where it lies beyond the picture."""
    left, top, width, height = box
    right, bottom = min(round(left + width), image.width), min(round(top + height), image.height)
    left, top = max(round(left), 0), max(round(top), 0)
    if right <= left or bottom <= top:
        return None
    colours = image.crop((left, top, right, bottom)).getcolors((right - left) * (bottom - top))
    return max(colours)[1]  # type: ignore[arg-type, return-value]  # as many as there are pixels, so never none


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in colour)
