(() => {
  // Geometric checks of a view, which the test of the layout runs in the page. Returns the faults as texts.
  //
  // A text must not lie over another one, nor be cut unless a title has all of it, and every control must be visible or come
  // into view by scrolling.
  const TOLERANCE = 1.5;
  const LINE = 4; // pixels that the boxes of two lines of text may share
  const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const nameOf = (element) => `${element.tagName.toLowerCase()}${[...element.classList].map((name) => `.${name}`).join("")}`;
  const meet = (one, other) => ({
    left: Math.max(one.left, other.left),
    right: Math.min(one.right, other.right),
    top: Math.max(one.top, other.top),
    bottom: Math.min(one.bottom, other.bottom),
  });
  const width = (box) => box.right - box.left;
  const height = (box) => box.bottom - box.top;
  const SCROLLS = /auto|scroll/;
  const WINDOW = { left: 0, top: 0, right: innerWidth, bottom: innerHeight };

  /** Returns the box of an element; that of an SVG element within another one, which has none, from its attributes. */
  function frameOf(element) {
    if (!element.ownerSVGElement) {
      return element.getBoundingClientRect();
    }
    const { a: scale, e, f } = element.parentElement.getScreenCTM();
    const [x, y, w, h] = ["x", "y", "width", "height"].map((name) => Number(element.getAttribute(name)) * scale);
    return { left: e + x, top: f + y, right: e + x + w, bottom: f + y + h };
  }

  /**
   * Returns the part of a box that the ancestors of an element show, or null for texts for screen readers. With `scrolled`, a
   * box in an element that scrolls counts as shown where that element is.
   */
  function visible(box, element, scrolled) {
    let part = box;
    let [lostX, lostY] = [null, null]; // what was cut within an element that scrolls
    for (let at = element; at && at !== document.documentElement; at = at.parentElement) {
      const { position, overflowX, overflowY, clipPath } = getComputedStyle(at);
      if (clipPath !== "none") {
        return null;
      }
      if (overflowX !== "visible" && at !== document.body) {
        const frame = frameOf(at);
        const inside = meet(part, frame);
        const pans = at.matches(".map, .map > svg"); // the user drags it
        const [x, y] = [overflowX, overflowY].map((style) => scrolled && (pans || SCROLLS.test(style)));
        lostX ??= x ? width(box) - width(part) : null;
        lostY ??= y ? height(box) - height(part) : null;
        part = {
          left: x ? frame.left : inside.left, right: x ? frame.right : inside.right,
          top: y ? frame.top : inside.top, bottom: y ? frame.bottom : inside.bottom,
        };
      }
      if (position === "fixed") {
        break;
      }
    }
    part = meet(part, WINDOW);
    return { ...part, lostX: width(part) < Math.min(width(box), 20) ? width(box) : (lostX ?? width(box) - width(part)), lostY: height(part) < Math.min(height(box), 10) ? height(box) : (lostY ?? height(box) - height(part)) };
  }

  function texts() {
    const found = [];
    const walker = document.createTreeWalker(document.querySelector("dialog[open]") ?? document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const element = node.parentElement;
      if (!node.data.trim() || !shown(element) || element.closest(".skip, option, script, .plot")) {
        continue;
      }
      range.selectNodeContents(node);
      for (const box of range.getClientRects()) {
        if (width(box) > 1) {
          found.push({ text: node.data.trim(), element, box, part: visible(box, element, false), all: visible(box, element, true) });
        }
      }
    }
    return found;
  }

  function overlaps(found) {
    const boxes = found.filter(({ part }) => part && width(part) > 1 && height(part) > 1).sort((one, other) => one.part.top - other.part.top);
    const faults = [];
    boxes.forEach((one, index) => {
      for (let next = index + 1; next < boxes.length && boxes[next].part.top < one.part.bottom; next += 1) {
        const other = boxes[next];
        const shared = meet(one.part, other.part);
        const isOver = (at, below) => getComputedStyle(at).position === "fixed" || at.closest("th, .head, .zoom, .toasts") !== below.closest("th, .head, .zoom, .toasts");
        if (one.element !== other.element && width(shared) > TOLERANCE && height(shared) > LINE && !isOver(one.element, other.element)) {
          faults.push(`'${one.text.slice(0, 40)}' (${nameOf(one.element)}) overlaps '${other.text.slice(0, 40)}' (${nameOf(other.element)})`);
        }
      }
    });
    return faults;
  }

  /** Returns the texts of which a part can never be seen, and which no title has whole. */
  function cuts(found) {
    const faults = [];
    for (const { text, element, box, all } of found) {
      if (all && width(box) > 1 && (all.lostX > TOLERANCE || all.lostY > LINE)) {
        const titled = element.closest("[title], :has(> title)");
        const title = titled?.getAttribute("title") ?? titled?.querySelector(":scope > title")?.textContent ?? "";
        if (element.closest(".num, .stat dd") || !title.includes(text.replace(/…$/, ""))) {
          faults.push(`'${text.slice(0, 40)}' (${nameOf(element)} in ${nameOf(element.parentElement)}) is cut`);
        }
      }
    }
    const canvas = document.createElement("canvas").getContext("2d");
    for (const select of document.querySelectorAll("select")) {
      canvas.font = getComputedStyle(select).font;
      const text = select.selectedOptions[0]?.text ?? "";
      if (shown(select) && canvas.measureText(text).width > select.clientWidth - 16 && !select.title.includes(text)) {
        faults.push(`'${text.slice(0, 40)}' (select) is cut`);
      }
    }
    return faults;
  }

  function unreachable() {
    const root = document.querySelector("dialog[open]") ?? document;
    return [...root.querySelectorAll("a, button, input, select, textarea, summary")]
      .filter((element) => shown(element) && !element.closest(".skip, svg"))
      .flatMap((element) => {
        const box = element.getBoundingClientRect();
        const part = visible(box, element, true);
        const isReached = part && width(box) - part.lostX >= Math.min(width(box), 20) && height(box) - part.lostY >= Math.min(height(box), 14);
        return isReached ? [] : [`${nameOf(element)} '${(element.ariaLabel ?? element.innerText).trim().slice(0, 40)}' cannot be reached`];
      });
  }

  /** Elements that scroll sideways, although they are no tables, tabs or payloads. */
  const sideways = () =>
    [...(document.querySelector("dialog[open]") ?? document.body).querySelectorAll("*")]
      .filter((element) => element.scrollWidth > element.clientWidth + 1 && SCROLLS.test(getComputedStyle(element).overflowX) && shown(element))
      .filter((element) => !element.matches(".table, .tabs, pre, select, textarea, input"))
      .map((element) => `${nameOf(element)} scrolls sideways`);

  const found = texts();
  return [...new Set([...overlaps(found), ...cuts(found), ...unreachable(), ...sideways()])];
})();
