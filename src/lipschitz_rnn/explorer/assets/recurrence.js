// ḣ = αA h + σ(W h + u), one explicit Runge–Kutta step at a time. The tableaux come from the Python package.

const SIGMA = {
  tanh: { value: Math.tanh, slope: (s) => 1 - s * s },
  relu: { value: (z) => (z > 0 ? z : 0), slope: (s) => (s > 0 ? 1 : 0) },
  sigmoid: { value: (z) => 1 / (1 + Math.exp(-z)), slope: (s) => s * (1 - s) },
  identity: { value: (z) => z, slope: () => 1 },
};

/** S(M) = M + (1 − 2β)Mᵀ − γI. */
function symmetricSkew(M, n, beta, gamma) {
  const S = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) S[i * n + j] = M[i * n + j] + (1 - 2 * beta) * M[j * n + i] - (i === j ? gamma : 0);
  }
  return S;
}

/** Everything that decides a step: the matrices of a network under the given settings. */
function makeSystem(network, settings) {
  const n = network.size;
  const free = network.M_A !== undefined;
  const A = free ? symmetricSkew(network.M_A, n, settings.beta[0], settings.gamma[0]) : network.A;
  const W = free ? symmetricSkew(network.M_W, n, settings.beta[1], settings.gamma[1]) : network.W;
  const { step, alpha, integrator, nonlinearity } = settings;
  return { n, A, W, linear: A.map((a) => alpha * a), step, integrator, nonlinearity, tableau: DATA.integrators[integrator],
    slopes: DATA.nonlinearities[nonlinearity], sigma: SIGMA[nonlinearity] };
}

/** The stages of one step: the value of σ and the slope k of each. */
function stagesOf(system, h, u) {
  const { n, linear, W, step, tableau, sigma } = system;
  const values = [], slopes = [];
  tableau.stages.forEach((row) => {
    const z = Float64Array.from(h);
    row.forEach((a, j) => {
      if (a !== 0) for (let i = 0; i < n; i++) z[i] += step * a * slopes[j][i];
    });
    const k = new Float64Array(n), s = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      let own = 0, driven = u[i];
      for (let j = 0, at = i * n; j < n; j++, at++) {
        own += linear[at] * z[j];
        driven += W[at] * z[j];
      }
      s[i] = sigma.value(driven);
      k[i] = own + s[i];
    }
    values.push(s);
    slopes.push(k);
  });
  return { values, slopes };
}

/** The state after one step from h with u held constant. */
function advance(system, h, u) {
  const { slopes } = stagesOf(system, h, u);
  const next = Float64Array.from(h);
  system.tableau.weights.forEach((b, stage) => {
    if (b !== 0) for (let i = 0; i < system.n; i++) next[i] += system.step * b * slopes[stage][i];
  });
  return next;
}

/** ḣ itself. */
function field(system, h, u) {
  const own = apply(system.linear, h), driven = apply(system.W, h);
  return own.map((value, i) => value + system.sigma.value(driven[i] + u[i]));
}

/** αA + diag(slopes) W: the Jacobian of the field where σ has these slopes. */
function fieldJacobian(system, slopes) {
  const { n, linear, W } = system;
  return linear.map((value, at) => value + slopes[Math.floor(at / n)] * W[at]);
}

/** The Jacobian of the map for given slopes of σ: one array for each stage. */
function mapJacobian(system, slopes) {
  const { n, step, tableau } = system;
  const changes = [];
  tableau.stages.forEach((row, stage) => {
    const inner = identity(n);
    row.forEach((a, j) => {
      if (a !== 0) for (let at = 0; at < n * n; at++) inner[at] += step * a * changes[j][at];
    });
    changes.push(multiply(fieldJacobian(system, slopes[stage]), inner, n));
  });
  const J = identity(n);
  tableau.weights.forEach((b, stage) => {
    if (b !== 0) for (let at = 0; at < n * n; at++) J[at] += step * b * changes[stage][at];
  });
  return J;
}

/** The Jacobian of the map that runs, at a state and an input. */
const jacobianAt = (system, h, u) =>
  mapJacobian(system, stagesOf(system, h, u).values.map((s) => s.map(system.sigma.slope)));

/** U x + b for one sample x. */
function drive(network, x) {
  const u = apply(network.U, x);
  return network.b ? u.map((value, i) => value + network.b[i]) : u;
}

/** All states of a sequence of samples, the start first. */
function run(system, network, samples, start) {
  const states = [start || new Float64Array(system.n)];
  for (const x of samples) states.push(advance(system, states[states.length - 1], drive(network, x)));
  return states;
}

/** ∂(g · last state)/∂ every sample, by the adjoint of the recurrence. */
function backward(system, network, samples, states, g) {
  const { n, step, tableau, linear, W, sigma } = system;
  const gradients = new Array(samples.length);
  let adjoint = Float64Array.from(g);
  for (let t = samples.length - 1; t >= 0; t--) {
    const { values } = stagesOf(system, states[t], drive(network, samples[t]));
    const inputs = new Float64Array(n);
    const inner = new Array(values.length);
    const next = Float64Array.from(adjoint);
    for (let stage = values.length - 1; stage >= 0; stage--) {
      const k = adjoint.map((value) => step * tableau.weights[stage] * value);
      for (let later = stage + 1; later < values.length; later++) {
        const a = tableau.stages[later][stage];
        if (a) for (let i = 0; i < n; i++) k[i] += step * a * inner[later][i];
      }
      const bent = k.map((value, i) => value * sigma.slope(values[stage][i]));
      const own = applyTransposed(linear, k), driven = applyTransposed(W, bent);
      inner[stage] = own.map((value, i) => value + driven[i]);
      for (let i = 0; i < n; i++) {
        inputs[i] += bent[i];
        next[i] += inner[stage][i];
      }
    }
    gradients[t] = applyTransposed(network.U, inputs);
    adjoint = next;
  }
  return gradients;
}
