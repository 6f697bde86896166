// What the form says, the network that follows from it, and its two trajectories. Views read `current`.

const STEPS = 400; // of the two trajectories
const RANDOM = "random";
const START = { choice: RANDOM, beta: [0.85, 0.85], gamma: [0.4, 0.4], alpha: 1, step: 0.1, size: 2, scale: 1.8, seed: 23,
  integrator: "euler", nonlinearity: "tanh", input: "none", strength: 1, starts: 1 };
const state = { ...START };
let current;

/** A network with random M; `scale` is a factor, so that the same network grows. */
function randomNetwork({ size, scale, seed }) {
  const draw = normals(2 * size * size + size, 1000 * seed + size);
  const factor = scale / Math.sqrt(size);
  return { name: "Random weights", size, inputs: 1, M_A: draw.slice(0, size * size).map((value) => factor * value),
    M_W: draw.slice(size * size, 2 * size * size).map((value) => factor * value), U: draw.slice(2 * size * size) };
}

/** The samples of all steps, one array of input channels each. */
function makeSamples({ input, strength, step }, channels, count = STEPS) {
  const noise = input === "noise" ? normals(count * channels, 77) : null;
  return Array.from({ length: count }, (_, t) => Float64Array.from({ length: channels }, (_, channel) => {
    if (input === "constant") return strength;
    if (input === "sine") return strength * Math.sin(t * step);
    return noise ? strength * noise[t * channels + channel] : 0;
  }));
}

/** The proof that fits the settings: that of the package where they are the trained ones, or the one found here. */
function certificateFor(network, system) {
  const trained = network.settings;
  const same = trained && ["alpha", "step", "integrator", "nonlinearity"].every((key) => trained[key] === state[key])
    && (!trained.beta || [0, 1].every((k) => trained.beta[k] === state.beta[k] && trained.gamma[k] === state.gamma[k]));
  if (same && network.certificate) return { ...network.certificate, method: "package" };
  const found = certify(system);
  return { ...found, holds: found.factor < 1 };
}

/** The length of a difference in the norm of a certificate. */
function lengthIn(certificate, delta) {
  if (certificate.metric) return Math.sqrt(Math.max(0, apply(certificate.metric, delta).reduce((sum, value, i) => sum + value * delta[i], 0)));
  return norm(certificate.root ? apply(certificate.root, delta) : delta);
}

function recompute() {
  const own = DATA.networks[Number(state.choice)];
  const network = state.choice === RANDOM ? randomNetwork(state) : own;
  const system = makeSystem(network, state);
  const samples = makeSamples(state, network.inputs);
  const draw = normals(2 * system.n, 31 * state.starts + 5).map((value) => 1.2 * value);
  const [a, b] = [draw.slice(0, system.n), draw.slice(system.n)].map((start) => run(system, network, samples, start));
  const certificate = certificateFor(network, system);
  const apart = a.map((h, t) => h.map((value, i) => value - b[t][i]));
  current = { network, system, samples, a, b, certificate, euclidean: apart.map(norm),
    inMetric: certificate.holds ? apart.map((delta) => lengthIn(certificate, delta)) : null,
    eigenvaluesA: eigenvalues(system.A, system.n), eigenvaluesW: eigenvalues(system.W, system.n) };
}

const both = (pair) => (pair[0] === pair[1] ? show(pair[0]) : `${show(pair[0])} (A), ${show(pair[1])} (W)`);

/** Write the state into the form. */
function showSettings() {
  const network = state.choice === RANDOM ? null : DATA.networks[Number(state.choice)];
  const values = { beta: state.beta[0], gamma: state.gamma[0], alpha: state.alpha, step: Math.log10(state.step),
    size: network ? network.size : state.size, scale: state.scale, strength: state.strength };
  const texts = { beta: both(state.beta), gamma: both(state.gamma), step: show(state.step) };
  for (const [id, value] of Object.entries(values)) {
    byId(id).value = value;
    byId(`${id}-value`).textContent = texts[id] || show(value);
  }
  byId("step").setAttribute("aria-valuetext", show(state.step));
  for (const id of ["integrator", "nonlinearity", "input"]) byId(id).value = state[id];
  byId("network").value = state.choice;
  const fixed = network !== null && network.M_A === undefined;
  for (const id of ["beta", "gamma"]) {
    byId(id).disabled = fixed;
    if (fixed) byId(`${id}-value`).textContent = "not used";
  }
  for (const id of ["size", "scale", "reseed"]) byId(id).disabled = network !== null;
  if (network) {
    byId("size").max = Math.max(64, network.size);
    byId("size").value = network.size;
    byId("scale-value").textContent = "as trained";
  }
  byId("network-about").textContent = !network ? "M has independent normal entries."
    : [network.about, fixed ? "A and W are built to contract, whatever the weights are." : "Trained weights; sliders change the rest."]
      .filter(Boolean).join(". ");
}

/** Take the settings that a network was trained with. */
function choose(choice) {
  state.choice = choice;
  const trained = choice === RANDOM ? START : DATA.networks[Number(choice)].settings;
  for (const key of ["alpha", "step", "integrator", "nonlinearity"]) state[key] = trained[key];
  for (const key of ["beta", "gamma"]) state[key] = [...(trained[key] || START[key])];
}

/** Fill the lists and listen; `changed` runs after every change. */
function connectSettings(changed) {
  const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
  byId("network").append(option(RANDOM, "Random weights"), ...DATA.networks.map((network, at) => option(String(at), network.name)));
  byId("integrator").append(...Object.keys(DATA.integrators).map((name) => option(name, name)));
  byId("nonlinearity").append(...Object.keys(DATA.nonlinearities).map((name) => option(name, name)));
  const on = (id, kind, act) => byId(id).addEventListener(kind, () => { act(byId(id).value); changed(); });
  on("network", "change", choose);
  for (const id of ["integrator", "nonlinearity", "input"]) on(id, "change", (value) => { state[id] = value; });
  for (const id of ["beta", "gamma"]) on(id, "input", (value) => { state[id] = [Number(value), Number(value)]; });
  for (const id of ["alpha", "size", "scale", "strength"]) on(id, "input", (value) => { state[id] = Number(value); });
  on("step", "input", (value) => { state.step = 10 ** Number(value); });
  on("reseed", "click", () => { state.seed++; });
  on("restart", "click", () => { state.starts++; });
  on("reset", "click", () => Object.assign(state, { ...START, beta: [...START.beta], gamma: [...START.gamma] }));
  if (DATA.networks[0].own) choose("0");
}
