// Figure 1 of the paper: two units fitted to a pendulum, with four pairs of β and γ.

const pendulum = (() => {
  let plot, swing, chosen = 1, paths, field2;
  const TIME = 30, STEP = 0.01, REACH = 2.2;

  const midpoint = (f, h) => {
    const k = f(h), half = f([h[0] + (STEP / 2) * k[0], h[1] + (STEP / 2) * k[1]]);
    return [h[0] + STEP * half[0], h[1] + STEP * half[1]];
  };

  function path(f, start) {
    const states = [start];
    for (let t = 0; t < TIME / STEP; t++) states.push(midpoint(f, states[t]));
    return states;
  }

  const fitted = ({ A, W, b }) => (h) => {
    const own = apply(A, h), driven = apply(W, h);
    return [0, 1].map((i) => own[i] + Math.tanh(driven[i] + b[i]));
  };
  const exact = ([angle, speed]) => [speed, -Math.sin(angle)];

  function update() {
    const fit = DATA.pendulums[chosen], start = [Number(byId("angle").value), 0];
    field2 = fitted(fit);
    paths = { network: path(field2, start), exact: path(exact, start) };
    byId("angle-value").textContent = `${show(start[0])} rad`;
    for (const [at, button] of [...byId("pendulum-choices").children].entries()) {
      button.setAttribute("aria-checked", String(at === chosen));
      button.tabIndex = at === chosen ? 0 : -1;
    }
    const kind = Math.abs(fit.growth) < 1e-9 ? "trajectories circle it" : fit.growth > 0 ? "trajectories leave it" : "trajectories are attracted";
    byId("pendulum-reading").textContent =
      `Largest real part at the rest point ${show(Math.abs(fit.growth) < 1e-9 ? 0 : fit.growth)}: ${kind}. Error of the fit ${show(fit.error)}.`;
  }

  function draw(seconds) {
    const at = Math.floor((seconds % TIME) / STEP);
    plot.begin();
    plot.x = plot.y = [-REACH, REACH];
    plot.axes("angle", "speed");
    plot.clipped(() => {
      for (let i = -5; i <= 5; i++) {
        for (let j = -5; j <= 5; j++) {
          const [x, y] = [i * 0.4, j * 0.4], [dx, dy] = field2([x, y]);
          const scale = plot.inner.width / 50;
          plot.arrow(x, y, dx * scale, dy * scale, colours.field);
        }
      }
      plot.line(paths.exact, colours.quiet, { width: 2, dash: [6, 4] });
      plot.line(paths.network, colours.first, { width: 1.6 });
      plot.dot(...DATA.pendulums[chosen].equilibrium, colours.third, { radius: 5 });
      plot.dot(...paths.exact[at], colours.quiet, { radius: 5 });
      plot.dot(...paths.network[at], colours.first, { radius: 5 });
    });
    swing.begin();
    swing.x = swing.y = [-1.3, 1.3];
    for (const [states, colour, width] of [[paths.exact, colours.quiet, 5], [paths.network, colours.first, 2.5]]) {
      const angle = states[at][0], end = [Math.sin(angle), 0.2 - Math.cos(angle)];
      swing.line([[0, 0.2], end], colour, { width });
      swing.dot(...end, colour, { radius: 9 });
    }
    swing.dot(0, 0.2, colours.ink, { radius: 3 });
  }

  function connect() {
    [plot, swing] = [new Plot("pendulum", { square: true }), new Plot("swing", { bare: true })];
    const group = byId("pendulum-choices");
    DATA.pendulums.forEach(({ beta, gamma }, at) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: `β = ${show(beta)}, γ = ${show(gamma)}` });
      button.setAttribute("role", "radio");
      button.addEventListener("click", () => { chosen = at; update(); });
      group.append(button);
    });
    group.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!by) return;
      chosen = (chosen + by + DATA.pendulums.length) % DATA.pendulums.length;
      update();
      group.children[chosen].focus();
      event.preventDefault();
    });
    byId("angle").addEventListener("input", update);
    update();
  }

  return { connect, draw, last: () => Array.from(paths.network[paths.network.length - 1]), choose: (at) => { chosen = at; update(); } };
})();
