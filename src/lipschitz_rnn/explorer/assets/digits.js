// A trained network reads an image pixel by pixel, as it is and with noise or an attack.

const digits = (() => {
  const readers = DATA.networks.filter((network) => network.images);
  const SPEED = 16; // pixels a second
  let network, side, pixels, clean, changed, at = 0, plots, brush = 0, drawing = null, clock = 0, strips = null;

  const count = () => side * side;

  function choose(place) {
    network = readers[place];
    const before = side;
    side = network.images.side;
    byId("pixel").max = count();
    const buttons = network.images.examples.map(({ label, pixels: given }) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: String(label) });
      button.setAttribute("aria-label", `Example of the digit ${label}`);
      button.addEventListener("click", () => { pixels = Float64Array.from(given); recompute(); });
      return button;
    });
    const clear = Object.assign(document.createElement("button"), { type: "button", textContent: "Clear" });
    clear.addEventListener("click", () => { pixels = new Float64Array(count()); recompute(); });
    byId("examples").replaceChildren(...buttons, clear);
    byId("digits-source").textContent = network.images.source ? `Examples: ${network.images.source}.` : "";
    const first = network.images.examples[3] || network.images.examples[0];
    if (before !== side) pixels = first ? Float64Array.from(first.pixels) : new Float64Array(count());
    recompute();
  }

  function read(image) {
    const states = run(network.system, network, asSamples(image));
    return { image, states, chances: states.map((h) => softmax(logits(network, h))) };
  }

  function recompute() {
    network.system = network.system || makeSystem(network, network.settings);
    const [noise, attack] = [Number(byId("noise").value), Number(byId("attack").value)];
    byId("noise-value").textContent = show(noise);
    byId("attack-value").textContent = show(attack);
    clean = read(pixels);
    const seen = argmax(clean.chances[count()]);
    changed = read(attackPixels(network, network.system, noisyPixels(pixels, noise), seen, attack));
    changed.apart = changed.states.map((h, t) => norm(h.map((value, i) => value - clean.states[t][i])));
    strips = null;
    report();
  }

  function report() {
    const [before, after] = [clean, changed].map(({ chances }) => chances[count()]);
    const say = (chances) => `${argmax(chances)} (${show(100 * Math.max(...chances))} %)`;
    const same = clean.image.every((value, i) => value === changed.image[i]);
    byId("digits-reading").textContent = same ? `After all ${count()} pixels: reads ${say(before)}.`
      : `After all ${count()} pixels: reads ${say(before)} as it is, and ${say(after)} with the change. The last state moved by ${show(changed.apart[count()])}.`;
  }

  /** A blue to red scale through the card's colour. */
  function shade(value) {
    const strength = Math.min(1, Math.abs(value));
    return `color-mix(in srgb, ${value < 0 ? colours.first : colours.second} ${Math.round(100 * strength)}%, ${colours.card})`;
  }

  function drawPad() {
    const { pad } = plots, { pen } = pad;
    pad.begin();
    const cell = pad.width / side;
    for (let i = 0; i < count(); i++) {
      const grey = Math.round(255 * changed.image[i]);
      pen.fillStyle = `rgb(${grey},${grey},${grey})`;
      pen.fillRect((i % side) * cell, Math.floor(i / side) * cell, cell + 0.5, cell + 0.5);
    }
    pen.lineWidth = 3;
    const mark = (place, colour) => {
      pen.strokeStyle = colour;
      pen.strokeRect((place % side) * cell + 1.5, Math.floor(place / side) * cell + 1.5, cell - 3, cell - 3);
    };
    if (at < count()) mark(at, colours.second);
    if (document.activeElement === pad.canvas) mark(brush, colours.third);
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.strokeRect(0.5, 0.5, pad.width - 1, pad.height - 1);
  }

  /** All states as a picture that is drawn once and then uncovered column by column. */
  function stripPicture() {
    const key = `${colours.card}${colours.first}`;
    if (strips && strips.key === key) return strips.picture;
    const picture = Object.assign(document.createElement("canvas"), { width: count(), height: network.size });
    const pen = picture.getContext("2d");
    const largest = Math.max(1e-9, ...changed.states.map((h) => Math.max(...h.map(Math.abs))));
    const scale = Array.from({ length: 41 }, (_, k) => shade((k - 20) / 20));
    for (let t = 0; t < count(); t++) {
      for (let i = 0; i < network.size; i++) {
        pen.fillStyle = scale[20 + Math.round((20 * changed.states[t + 1][i]) / largest)] || scale[20];
        pen.fillRect(t, i, 1, 1);
      }
    }
    strips = { key, picture };
    return picture;
  }

  function drawStrip() {
    const { strip } = plots, { pen } = strip;
    strip.begin();
    pen.imageSmoothingEnabled = false;
    if (at > 0) pen.drawImage(stripPicture(), 0, 0, at, network.size, 0, 0, (strip.width * at) / count(), strip.height);
    pen.strokeStyle = colours.line;
    pen.strokeRect(0.5, 0.5, strip.width - 1, strip.height - 1);
  }

  function drawBars() {
    const { bars } = plots, { pen } = bars;
    bars.begin();
    const [before, after] = [clean.chances[at], changed.chances[at]];
    const row = bars.height / before.length, room = bars.width - 28;
    pen.textBaseline = "middle";
    before.forEach((chance, digit) => {
      const top = digit * row;
      pen.fillStyle = colours.ink;
      pen.fillText(String(digit), 4, top + row / 2);
      pen.fillStyle = colours.grid;
      pen.fillRect(24, top + 2, room, row - 4);
      pen.fillStyle = colours.quiet;
      pen.fillRect(24, top + 2, room * chance, row / 2 - 2);
      pen.fillStyle = colours.second;
      pen.fillRect(24, top + row / 2, room * after[digit], row / 2 - 2);
    });
  }

  function drawMoved() {
    const { moved } = plots;
    moved.begin();
    moved.x = [0, count()];
    moved.y = [0, Math.max(0.1, 1.1 * Math.max(...changed.apart))];
    moved.axes("pixels read", "distance");
    moved.clipped(() => {
      moved.line(changed.apart.map((length, t) => [t, length]), colours.second, { alpha: 0.35 });
      moved.line(changed.apart.slice(0, at + 1).map((length, t) => [t, length]), colours.second, { width: 2 });
      moved.dot(at, changed.apart[at], colours.second);
    });
  }

  function draw() {
    byId("pixel").value = at;
    byId("pixel-value").textContent = `${at} of ${count()}`;
    drawPad();
    drawStrip();
    drawBars();
    drawMoved();
  }

  /** Read on; wait two seconds at the end, then begin again. */
  function move(seconds) {
    clock += Math.min(seconds, 0.1) * SPEED * (count() / 64);
    at = Math.min(count(), Math.floor(clock));
    if (clock > count() * 1.4) clock = 0;
  }

  function paint(place, value) {
    pixels = Float64Array.from(pixels);
    pixels[place] = value;
    recompute();
  }

  function connectPad(canvas) {
    const placeOf = (event) => {
      const box = canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top].map((value) => Math.floor((value / box.width) * side));
      return x < 0 || y < 0 || x >= side || y >= side ? null : y * side + x;
    };
    canvas.addEventListener("pointerdown", (event) => {
      const place = placeOf(event);
      if (place === null) return;
      canvas.setPointerCapture(event.pointerId);
      drawing = pixels[place] > 0.5 ? 0 : 1;
      paint(place, drawing);
    });
    canvas.addEventListener("pointermove", (event) => {
      const place = drawing === null ? null : placeOf(event);
      if (place !== null && pixels[place] !== drawing) paint(place, drawing);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { drawing = null; });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -side, ArrowDown: side }[event.key];
      if (by) brush = (brush + by + count()) % count();
      else if (event.key === " " || event.key === "Enter") paint(brush, pixels[brush] > 0.5 ? 0 : 1);
      else return;
      event.preventDefault();
      draw();
    });
  }

  function connect() {
    plots = { pad: new Plot("pad", { bare: true }), strip: new Plot("strip", { bare: true }), bars: new Plot("bars", { bare: true }), moved: new Plot("moved") };
    readers.forEach((each, place) => byId("reader").append(Object.assign(document.createElement("option"), { value: place, textContent: each.name })));
    byId("reader").addEventListener("change", () => choose(Number(byId("reader").value)));
    for (const id of ["noise", "attack"]) byId(id).addEventListener("input", recompute);
    byId("pixel").addEventListener("input", () => { at = Number(byId("pixel").value); clock = at; draw(); });
    connectPad(plots.pad.canvas);
    choose(0);
  }

  const reading = () => ({ image: Array.from(changed.image), last: Array.from(changed.states[count()]), chances: Array.from(changed.chances[count()]) });
  return { connect, move, draw, reading, readers: () => readers.map(({ name }) => name),
    gradient: (label) => Array.from(lossGradient(network, network.system, pixels, label)) };
})();
