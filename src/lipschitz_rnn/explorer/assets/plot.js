// A canvas with axes. Lengths are in CSS pixels; the canvas itself has as many as the screen shows.

const colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["card", "ink", "quiet", "line", "grid", "first", "second", "third", "region", "field"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

const SPACE = { left: 58, right: 16, top: 8, bottom: 36 };

class Plot {
  /** `square`: a unit is as long across as up, so that a circle is round. */
  constructor(id, { bare = false, square = false } = {}) {
    this.canvas = byId(id);
    this.pen = this.canvas.getContext("2d");
    this.square = square;
    this.space = bare ? { left: 0, right: 0, top: 0, bottom: 0 } : SPACE;
    this.x = [0, 1];
    this.y = [0, 1];
  }

  /** Fit the canvas to its place on the screen, and clear it. */
  begin() {
    const { canvas, pen } = this;
    const ratio = window.devicePixelRatio || 1;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    const [wide, high] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = "12px system-ui, sans-serif";
    pen.lineJoin = "round";
  }

  get inner() {
    const { left, right, top, bottom } = this.space;
    // A window that is just being opened or folded can have no room at all.
    const width = Math.max(1, this.width - left - right), height = Math.max(1, this.height - top - bottom);
    if (!this.square) return { left, top, width, height };
    const side = Math.min(width, height);
    return { left: left + (width - side) / 2, top: top + (height - side) / 2, width: side, height: side };
  }

  px(x) { return this.inner.left + ((x - this.x[0]) / (this.x[1] - this.x[0])) * this.inner.width; }
  py(y) { return this.inner.top + ((this.y[1] - y) / (this.y[1] - this.y[0])) * this.inner.height; }
  atX(px) { return this.x[0] + ((px - this.inner.left) / this.inner.width) * (this.x[1] - this.x[0]); }
  atY(py) { return this.y[1] - ((py - this.inner.top) / this.inner.height) * (this.y[1] - this.y[0]); }

  /** Grid, numbers and names of the axes; `power` writes y as a power of ten. */
  axes(nameX, nameY, { power = false } = {}) {
    const { pen, inner } = this;
    pen.lineWidth = 1;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const value of ticks(this.x, inner.width / 70)) {
      this.rule(this.px(value), inner.top, this.px(value), inner.top + inner.height);
      pen.fillStyle = colours.quiet;
      pen.fillText(show(value), this.px(value), inner.top + inner.height + 4);
    }
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of ticks(this.y, inner.height / 45, power)) {
      this.rule(inner.left, this.py(value), inner.left + inner.width, this.py(value));
      pen.fillStyle = colours.quiet;
      pen.fillText(power ? powerOfTen(value) : show(value), inner.left - 5, this.py(value));
    }
    pen.fillStyle = colours.ink;
    pen.textAlign = "center";
    pen.textBaseline = "bottom";
    pen.fillText(nameX, inner.left + inner.width / 2, inner.top + inner.height + this.space.bottom);
    pen.save();
    pen.translate(2, inner.top + inner.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.textBaseline = "top";
    pen.fillText(nameY, 0, 0);
    pen.restore();
    pen.strokeStyle = colours.line;
    pen.strokeRect(inner.left, inner.top, inner.width, inner.height);
  }

  rule(x0, y0, x1, y1) {
    this.pen.strokeStyle = colours.grid;
    this.pen.beginPath();
    this.pen.moveTo(x0, y0);
    this.pen.lineTo(x1, y1);
    this.pen.stroke();
  }

  /** Draw only inside the axes. */
  clipped(draw) {
    const { pen, inner } = this;
    pen.save();
    pen.beginPath();
    pen.rect(inner.left, inner.top, inner.width, inner.height);
    pen.clip();
    draw();
    pen.restore();
  }

  line(points, colour, { width = 1.6, dash = [], alpha = 1 } = {}) {
    const { pen } = this;
    pen.save();
    Object.assign(pen, { strokeStyle: colour, lineWidth: width, globalAlpha: alpha });
    pen.setLineDash(dash);
    pen.beginPath();
    let drawing = false;
    for (const [x, y] of points) {
      if (!Number.isFinite(x) || !Number.isFinite(y)) drawing = false;
      else if (drawing) pen.lineTo(this.px(x), this.py(y));
      else { pen.moveTo(this.px(x), this.py(y)); drawing = true; }
    }
    pen.stroke();
    pen.restore();
  }

  dot(x, y, colour, { radius = 4, hollow = false } = {}) {
    if (!Number.isFinite(x) || !Number.isFinite(y)) return;
    const { pen } = this;
    pen.beginPath();
    pen.arc(this.px(x), this.py(y), radius, 0, 2 * Math.PI);
    pen.fillStyle = hollow ? colours.card : colour;
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.fill();
    if (hollow) pen.stroke();
  }

  arrow(x, y, dx, dy, colour) {
    const { pen } = this;
    const [x0, y0] = [this.px(x), this.py(y)];
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x0 + dx, y0 - dy);
    pen.moveTo(x0 + 0.7 * dx + 0.15 * dy, y0 - 0.7 * dy + 0.15 * dx);
    pen.lineTo(x0 + dx, y0 - dy);
    pen.lineTo(x0 + 0.7 * dx - 0.15 * dy, y0 - 0.7 * dy - 0.15 * dx);
    pen.stroke();
  }
}

const powerOfTen = (power) => `10${String(power).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])}`;

/** Round numbers in a range, about `count` of them. */
function ticks([low, high], count, whole = false) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) found.push(at * step);
  return found.slice(0, 40);
}
