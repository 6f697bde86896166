// Time passes: settings are read, views are drawn, and a test can ask for the numbers behind them.

const PLAYBACK = 20; // steps of the two trajectories a second
const still = window.matchMedia("(prefers-reduced-motion: reduce)");
let playing = !still.matches, position = 0, last = null, dirty = true, touched = true, swung = 0, frames = 0, announcing = null;

function refresh() {
  showSettings();
  recompute();
  for (const view of [portrait, spectra, distance]) view.update();
  position = 0;
  spectra.drawPlane();
  clearTimeout(announcing);
  announcing = setTimeout(() => { byId("status").textContent = distance.verdict(); }, 600); // once a slider rests
}

/** Only what can be seen is drawn. */
const visible = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) visible.add(target.id);
    else visible.delete(target.id);
  }
}, { rootMargin: "50px" });

function frame(now) {
  const seconds = last === null ? 0 : Math.min(0.25, (now - last) / 1000);
  last = now;
  frames++;
  requestAnimationFrame(frame);
  if (!playing && !dirty && !touched) return; // nothing moves: leave the processor alone
  touched = false;
  const everything = dirty; // once after a change, for printing and for what scrolls into view
  if (dirty) {
    dirty = false;
    refresh();
  }
  const shown = (...ids) => everything || ids.some((id) => visible.has(id));
  if (playing) {
    position = (position + seconds * PLAYBACK) % (STEPS + 1);
    swung += seconds;
    portrait.move(seconds, Math.floor(position));
    if (shown("pad", "bars", "moved")) digits.move(seconds);
  }
  const at = Math.min(STEPS, Math.floor(position));
  if (shown("portrait")) portrait.draw(at);
  if (shown("distance")) distance.draw(at);
  if (shown("circle")) spectra.drawCircle(at);
  if (shown("pad", "bars", "moved")) digits.draw();
  if (shown("pendulum", "swing")) pendulum.draw(swung);
}

function showPlaying() {
  byId("play").textContent = playing ? "Pause" : "Play";
  byId("play").setAttribute("aria-pressed", String(playing));
}

readColours();
byId("version").textContent = DATA.version;
connectSettings(() => { dirty = true; });
for (const view of [portrait, spectra, distance, pendulum, digits]) view.connect();
for (const canvas of document.querySelectorAll("canvas")) watcher.observe(canvas);
byId("play").addEventListener("click", () => { playing = !playing; showPlaying(); });
byId("settings").addEventListener("submit", (event) => event.preventDefault());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); dirty = true; });
window.addEventListener("resize", () => { dirty = true; });
for (const kind of ["input", "change", "click", "keydown", "keyup", "pointerdown", "pointermove", "focusin", "focusout", "scroll"]) {
  document.addEventListener(kind, () => { touched = true; }, { capture: true, passive: true });
}
showPlaying();
requestAnimationFrame(frame);

/** Plain numbers for tests and for the curious: what the page has computed for the settings that it shows. */
const plain = (values) => (values === undefined || values === null ? null : Array.from(values));
window.explorer = {
  settle: () => { dirty = false; refresh(); },
  settings: () => ({ ...state }),
  network: () => Object.fromEntries(["M_A", "M_W", "A", "W", "U", "b"].map((key) => [key, plain(current.network[key])])),
  matrices: () => ({ A: plain(current.system.A), W: plain(current.system.W) }),
  samples: () => current.samples.map(plain),
  states: () => ({ a: current.a.map(plain), b: current.b.map(plain) }),
  distances: () => ({ euclidean: plain(current.euclidean), inMetric: plain(current.inMetric) }),
  certificate: () => ({ holds: current.certificate.holds, factor: current.certificate.factor, method: current.certificate.method, root: plain(current.certificate.root) }),
  eigenvalues: () => ({ A: current.eigenvaluesA, W: current.eigenvaluesW }),
  jacobian: (at) => {
    const J = jacobianAt(current.system, current.a[at], drive(current.network, current.samples[at]));
    return { matrix: plain(J), eigenvalues: eigenvalues(J, current.system.n) };
  },
  /** The first 30 steps from zero by any integrator, and the gradient of the first unit's last value by their inputs. */
  adjoint: (integrator) => {
    const system = makeSystem(current.network, { ...state, integrator, step: 0.1, alpha: 1, nonlinearity: "tanh" });
    const samples = makeSamples({ ...state, input: "noise", step: 0.1 }, current.network.inputs, 30);
    const states = run(system, current.network, samples);
    const first = Float64Array.from(states[0], (_, i) => (i === 0 ? 1 : 0));
    return { A: plain(system.A), W: plain(system.W), U: plain(current.network.U), samples: samples.map(plain), last: plain(states[30]),
      gradient: backward(system, current.network, samples, states, first).map(plain) };
  },
  equilibria: portrait.equilibria,
  started: portrait.started,
  digit: digits.reading,
  readers: digits.readers,
  gradient: digits.gradient,
  pendulum: { choose: pendulum.choose, last: pendulum.last },
  frames: () => frames,
};
