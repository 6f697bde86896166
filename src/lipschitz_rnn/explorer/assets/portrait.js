// The plane of the first two units: the field, its equilibria, and trajectories that move.

const portrait = (() => {
  let plot, particles, equilibria, started, cursor, reach, drawn;
  const LIFE = 4, COUNT = 50, TRAIL = 20, SPEED = 1.5; // seconds, particles, points, units of time per second
  let clock = 0;
  const uniform = generator(9);

  const isPlane = () => current.system.n === 2;
  const inputNow = (at) => drive(current.network, current.samples[Math.min(at, current.samples.length - 1)]);
  const spread = () => [(2 * uniform() - 1) * reach, (2 * uniform() - 1) * reach];
  const born = () => ({ age: uniform() * LIFE, trail: [spread()] });

  /** Rest points of the field with the input held, by Newton's method from a grid; they are fixed points of the map. */
  function findEquilibria(u) {
    const { system } = current;
    const found = [];
    for (let i = -7; i <= 7; i++) {
      for (let j = -7; j <= 7; j++) {
        let h = Float64Array.of(i * 0.6, j * 0.6);
        for (let round = 0; round < 40; round++) {
          const f = field(system, h, u);
          const driven = apply(system.W, h);
          const [a, b, c, d] = fieldJacobian(system, driven.map((value, k) => system.sigma.slope(system.sigma.value(value + u[k]))));
          const det = a * d - b * c;
          if (Math.abs(det) < 1e-12) break;
          h = Float64Array.of(h[0] - (d * f[0] - b * f[1]) / det, h[1] - (a * f[1] - c * f[0]) / det);
        }
        const known = found.some((other) => Math.hypot(other.h[0] - h[0], other.h[1] - h[1]) < 1e-5);
        if (known || !(norm(field(system, h, u)) < 1e-9) || norm(h) > 50) continue;
        const radius = spectralRadius(eigenvalues(jacobianAt(system, h, u), 2));
        found.push({ h, stable: radius < 1 });
      }
    }
    return found.slice(0, 25);
  }

  function update() {
    const { a, b } = current;
    equilibria = isPlane() ? findEquilibria(inputNow(0)) : [];
    const sizes = [...a, ...b].slice(0, 2 * STEPS).map((h) => Math.max(Math.abs(h[0]), Math.abs(h[1]))).filter(Number.isFinite);
    const points = equilibria.map(({ h }) => Math.max(Math.abs(h[0]), Math.abs(h[1]))).filter((size) => size < 6);
    reach = Math.min(12, Math.max(2, 1.2 * Math.max(...points, 0), 1.1 * Math.max(...sizes, 0)));
    started = [];
    cursor = cursor || [0, 0];
    particles = Array.from({ length: COUNT }, born);
    drawn = null;
  }

  function move(seconds, at) {
    if (!isPlane()) return;
    clock += Math.min(seconds, 0.1) * SPEED;
    const steps = Math.min(6, Math.floor(clock / current.system.step));
    clock = steps === 6 ? 0 : clock - steps * current.system.step;
    const u = inputNow(at);
    for (const particle of particles) {
      particle.age += seconds;
      for (let k = 0; k < steps; k++) {
        const [x, y] = particle.trail[particle.trail.length - 1];
        particle.trail.push(Array.from(advance(current.system, [x, y], u)));
      }
      particle.trail.splice(0, Math.max(0, particle.trail.length - TRAIL));
      const last = particle.trail[particle.trail.length - 1];
      if (particle.age > LIFE || !(Math.hypot(...last) < 4 * reach)) Object.assign(particle, { age: 0, trail: [spread()] });
    }
  }

  function drawField(u) {
    const count = 17, length = plot.inner.width / count;
    for (let i = 0; i < count; i++) {
      for (let j = 0; j < count; j++) {
        const at = [((2 * i + 1) / count - 1) * reach, ((2 * j + 1) / count - 1) * reach];
        const [dx, dy] = field(current.system, at, u);
        const speed = Math.hypot(dx, dy);
        const size = (length * 0.75 * speed) / (speed + 0.6);
        if (speed > 0) plot.arrow(at[0], at[1], (dx / speed) * size, (dy / speed) * size, colours.field);
      }
    }
  }

  function draw(at) {
    plot.begin();
    plot.x = plot.y = [-reach, reach];
    plot.axes("h₁", "h₂");
    const { a, b } = current;
    plot.clipped(() => {
      if (isPlane()) drawField(inputNow(at));
      if (isPlane()) for (const { trail } of particles) plot.line(trail, colours.quiet, { width: 1.2, alpha: 0.7 });
      for (const path of started) plot.line(path, colours.ink, { width: 1.4, dash: [5, 3] });
      plot.line(a, colours.first, { width: 1.8 });
      plot.line(b, colours.second, { width: 1.8 });
      for (const { h, stable } of equilibria) plot.dot(h[0], h[1], colours.third, { radius: 6, hollow: !stable });
      plot.dot(a[at][0], a[at][1], colours.first, { radius: 5 });
      plot.dot(b[at][0], b[at][1], colours.second, { radius: 5 });
      if (document.activeElement === plot.canvas) {
        const { pen } = plot;
        pen.strokeStyle = colours.ink;
        pen.strokeRect(plot.px(cursor[0]) - 5, plot.py(cursor[1]) - 5, 10, 10);
      }
    });
    const stable = equilibria.filter((point) => point.stable).length;
    const text = isPlane()
      ? `${equilibria.length} ${equilibria.length === 1 ? "equilibrium" : "equilibria"}, ${stable} stable under this step${["sine", "noise"].includes(state.input) ? ", for the first input held" : ""}.`
      : `${current.system.n} units: only the first two are drawn, so there is no field. Choose N = 2 for the portrait.`;
    if (text !== drawn) byId("portrait-reading").textContent = drawn = text;
  }

  /** A trajectory from a point of the plane; the other units start at zero. */
  function start(x, y) {
    const h = new Float64Array(current.system.n);
    [h[0], h[1]] = [x, y];
    started.push(run(current.system, current.network, current.samples, h));
    started.splice(0, started.length - 8);
    cursor = [x, y];
  }

  function connect() {
    plot = new Plot("portrait", { square: true });
    plot.canvas.addEventListener("pointerdown", (event) => {
      const box = plot.canvas.getBoundingClientRect();
      start(plot.atX(event.clientX - box.left), plot.atY(event.clientY - box.top));
    });
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    plot.canvas.addEventListener("keydown", (event) => {
      const by = moves[event.key];
      if (by) cursor = cursor.map((value, k) => Math.max(-reach, Math.min(reach, value + (by[k] * reach) / 15)));
      else if (event.key === "Enter" || event.key === " ") start(...cursor);
      else return;
      event.preventDefault();
    });
  }

  return { connect, update, move, draw, equilibria: () => equilibria.map(({ h, stable }) => ({ h: Array.from(h), stable })), started: () => started.length };
})();
