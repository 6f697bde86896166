"use strict";
// Comfort only: the page is complete without this script. Tables can be sorted, and curves show their numbers.

const MISSING = /^[–—-]?$/;
const MOST_READINGS = 12; // in one box
const SECONDS = { s: 1, min: 60, h: 3600, d: 86400 };

/** What a cell counts for: the first number in it, durations in seconds; null where there is none. */
function numberIn(text) {
  const found = text.match(/^[<>≈≤≥]?\s*([-−+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)(?:\s*(s|min|h|d)\b)?/i);
  return found && Number(found[1].replace("−", "-").replaceAll(",", "")) * (SECONDS[found[2]] ?? 1);
}

function sortKeys(rows, column) {
  const texts = rows.map((row) => row.cells[column].textContent.trim());
  const numbers = texts.map((text) => (MISSING.test(text) ? null : numberIn(text)));
  const numeric = texts.every((text, index) => MISSING.test(text) || numbers[index] !== null);
  return texts.map((text, index) => (MISSING.test(text) ? null : numeric ? numbers[index] : text));
}

/** Rows without a value stay last in both directions. */
function sortRows(rows, column, direction) {
  const keys = sortKeys(rows, column);
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  const order = rows.map((_, index) => index).sort((i, j) => {
    if (keys[i] === null || keys[j] === null) return (keys[i] === null) - (keys[j] === null);
    return direction * compare(keys[i], keys[j]);
  });
  return order.map((index) => rows[index]);
}

function makeSortable(table) {
  const body = table.tBodies[0];
  if (!body || body.rows.length < 2) return;
  const written = [...body.rows];
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: null }[header.getAttribute("aria-sort") ?? "none"];
      for (const other of headers) other.removeAttribute("aria-sort");
      if (next) header.setAttribute("aria-sort", next);
      body.append(...(next ? sortRows(written, column, next === "ascending" ? 1 : -1) : written));
    });
  });
}

function element(kind, attributes, parent) {
  const made = document.createElementNS(parent.namespaceURI, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

/** Shows the numbers of all curves at the place of the pointer, or step by step with the arrow keys. */
class Reader {
  constructor(figure) {
    this.panels = JSON.parse(figure.dataset.panels);
    this.plot = figure.querySelector(".plot");
    this.svg = this.plot.querySelector("svg");
    const group = figure.querySelector(".scroll");
    this.box = document.createElement("div");
    this.box.className = "reading";
    this.box.setAttribute("role", "status");
    this.box.hidden = true;
    figure.append(this.box);
    this.svg.addEventListener("pointermove", (event) => this.follow(event));
    this.svg.addEventListener("pointerdown", (event) => this.follow(event));
    this.svg.addEventListener("pointerleave", () => this.hide());
    group.addEventListener("blur", () => this.hide());
    group.addEventListener("keydown", (event) => this.step(event));
    group.setAttribute("aria-description", "Arrow keys read the numbers.");
  }

  follow(event) {
    const box = this.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width;
    const y = (event.clientY - box.top) / box.height;
    const panel = this.panels.find(({ box: [left, top, right, bottom] }) => x >= left && x <= right && y >= top && y <= bottom);
    if (panel) this.show(panel, this.nearest(panel, x), y);
    else this.hide();
  }

  places(panel) {
    return [...new Set(panel.curves.flatMap(([, , points]) => points.map((point) => point[0])))].sort((a, b) => a - b);
  }

  nearest(panel, x) {
    return this.places(panel).reduce((best, place) => (Math.abs(place - x) < Math.abs(best - x) ? place : best));
  }

  step(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1, Escape: 0 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    if (!move) return this.hide();
    const all = this.panels.flatMap((panel) => this.places(panel).map((place) => [panel, place]));
    const now = all.findIndex(([panel, place]) => panel === this.panel && place === this.place);
    const next = now < 0 ? (move > 0 ? 0 : all.length - 1) : Math.min(Math.max(now + move, 0), all.length - 1);
    this.show(...all[next], 0);
  }

  show(panel, place, y) {
    this.hide();
    [this.panel, this.place] = [panel, place];
    const found = panel.curves.flatMap(([name, colour, points]) =>
      points.filter((point) => point[0] === place).map((point) => ({ name, colour, point })));
    found.sort((a, b) => a.point[1] - b.point[1]);
    const near = found.reduce((best, each) => (Math.abs(each.point[1] - y) < Math.abs(best.point[1] - y) ? each : best));
    const { width, height } = this.svg.viewBox.baseVal;
    const [, top, , bottom] = panel.box;
    this.marks = element("g", {}, this.svg);
    const x = place * width;
    element("line", { class: "rule", x1: x, x2: x, y1: top * height, y2: bottom * height }, this.marks);
    for (const { colour, point } of found) {
      element("circle", { class: "dot", cx: x, cy: point[1] * height, r: 3.2, style: `fill: ${colour}` }, this.marks);
    }
    const around = found.toSorted((a, b) => Math.abs(a.point[1] - y) - Math.abs(b.point[1] - y)).slice(0, MOST_READINGS);
    this.fill(panel, found.filter((each) => around.includes(each)), near);
    this.put(place, y);
  }

  fill(panel, found, near) {
    const head = document.createElement("div");
    head.textContent = `${panel.label} ${shown(found[0].point[2])}`;
    const table = document.createElement("table");
    for (const each of found) {
      const row = table.insertRow();
      row.className = each === near ? "near" : "";
      const swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.background = each.colour;
      row.insertCell().append(swatch, each.name);
      row.insertCell().textContent = shown(each.point[3]);
    }
    this.box.replaceChildren(head, table);
    this.box.hidden = false;
  }

  /** Beside the line, on the side that has room, and never outside of the figure. */
  put(place, y) {
    const frame = this.box.offsetParent.getBoundingClientRect();
    const picture = this.svg.getBoundingClientRect();
    const x = picture.left - frame.left + place * picture.width;
    const left = x + 14 + this.box.offsetWidth < frame.width ? x + 14 : x - 14 - this.box.offsetWidth;
    const top = picture.top - frame.top + y * picture.height - this.box.offsetHeight / 2;
    this.box.style.left = `${Math.max(4, Math.min(left, frame.width - this.box.offsetWidth - 4))}px`;
    this.box.style.top = `${Math.max(4, Math.min(top, frame.height - this.box.offsetHeight - 4))}px`;
  }

  hide() {
    this.marks?.remove();
    this.box.hidden = true;
    this.panel = this.place = undefined;
  }
}

function shown(value) {
  return Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
}

document.querySelectorAll("main table").forEach(makeSortable);
document.querySelectorAll("figure[data-panels]").forEach((figure) => new Reader(figure));
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
