// A proved contraction factor of the map that runs: ‖Φ(a) − Φ(b)‖ ≤ ρ ‖a − b‖ for all states and all inputs.
//
// The difference of two trajectories is multiplied by a Jacobian whose slopes lie in the range of σ, one for each unit
// and stage. It is affine in each slope and the norm is convex, so the largest norm stands at a corner of the cube.

/** The best factor that is found for these settings: { factor, root, text }, root the T of ‖Tδ‖ or null for ‖δ‖. */
function certify(system) {
  if (![...system.linear, ...system.W].every(Number.isFinite)) return { factor: Infinity, root: null, method: "none" };
  if (system.n === 2) return certifyPair(system);
  if (system.integrator === "euler") return certifyByCentre(system);
  return { factor: Infinity, root: null, method: "none" };
}

/** Room for all rounding above, far more than it needs: the terms of a Jacobian add up to at most this. */
const rounding = (system) => 1e-12 * Math.exp(system.step * (norm(system.linear) + norm(system.W)));

/** Two units: all corners of the slopes, in the best metric ‖Tδ‖, T upper triangular, that a search finds. */
function certifyPair(system) {
  const stages = system.tableau.weights.length;
  const corners = [];
  for (let pattern = 0; pattern < 2 ** (2 * stages); pattern++) {
    const slopes = [];
    for (let stage = 0; stage < stages; stage++) {
      slopes.push([0, 1].map((unit) => system.slopes[(pattern >> (2 * stage + unit)) & 1]));
    }
    corners.push(mapJacobian(system, slopes));
  }
  const slack = rounding(system);
  const worst = (shear, stretch) => {
    let largest = 0;
    for (const J of corners) largest = Math.max(largest, normIn(J, shear, stretch));
    const spread = (1 + shear * shear + stretch * stretch) / stretch;
    return largest + slack * spread;
  };
  let best = [0, 0], value = worst(0, 1);
  for (let reach = 2; reach > 1e-3; reach *= 0.7) {
    for (let moved = true, rounds = 0; moved && rounds < 20; rounds++) {
      moved = false;
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1], [1, -1], [-1, 1]]) {
        const trial = [best[0] + reach * dx, best[1] + reach * dy];
        if (Math.abs(trial[0]) > 20 || Math.abs(trial[1]) > 4) continue;
        const seen = worst(trial[0], Math.exp(trial[1]));
        if (seen < value) [best, value, moved] = [trial, seen, true];
      }
    }
  }
  return { factor: value, root: Float64Array.of(1, best[0], 0, Math.exp(best[1])), method: "corners" };
}

/** ‖T J T⁻¹‖₂ for T = [1, shear; 0, stretch]. */
function normIn([a, b, c, d], shear, stretch) {
  const p = a + shear * c, q = b + shear * d, r = stretch * c, s = stretch * d;
  const w = p, x = (q - shear * p) / stretch, y = r, z = (s - shear * r) / stretch;
  const total = w * w + x * x + y * y + z * z, det = w * z - x * y;
  return Math.sqrt((total + Math.sqrt(Math.max(0, (total - 2 * det) * (total + 2 * det)))) / 2);
}

/** Any size, Euler, Euclidean: ‖I + ε(αA + mW)‖ + εr‖W‖ with m ± r the range of the slopes. Often too coarse. */
function certifyByCentre(system) {
  const { n, linear, W, step, slopes } = system;
  const middle = (slopes[0] + slopes[1]) / 2, radius = (slopes[1] - slopes[0]) / 2;
  const centre = identity(n).map((value, at) => value + step * (linear[at] + middle * W[at]));
  const factor = spectralNormBound(centre, n) + step * radius * spectralNormBound(W, n);
  return { factor: factor + n * rounding(system), root: null, method: "centre" };
}
