// Eigenvalues of A and W against the stable region of the integrator, and those of the map against the unit circle.

const spectralRadius = (values) => (values ? Math.max(...values.map(([re, im]) => Math.hypot(re, im))) : NaN);
const largestReal = (values) => (values ? Math.max(...values.map(([re]) => re)) : NaN);

const spectra = (() => {
  let plane, circle, seen, values, shaded, cost = 0, done = 0;

  /** |R(z)| of the integrator, R(z) = 1 + z Σ bᵢ (…): the factor of one step for ẏ = λy, z = ελ. */
  function growth(tableau, re, im) {
    const slopes = [];
    for (const row of tableau.stages) {
      let [x, y] = [1, 0];
      row.forEach((a, j) => { x += a * (re * slopes[j][0] - im * slopes[j][1]); y += a * (re * slopes[j][1] + im * slopes[j][0]); });
      slopes.push([x, y]);
    }
    let [x, y] = [1, 0];
    tableau.weights.forEach((b, j) => { x += b * (re * slopes[j][0] - im * slopes[j][1]); y += b * (re * slopes[j][1] + im * slopes[j][0]); });
    return Math.hypot(x, y);
  }

  /** The stable region as one path of cells, kept until something moves it. */
  function regionPath(reach) {
    const { tableau, step } = current.system;
    const key = [state.integrator, step, reach, plane.width].join();
    if (shaded && shaded.key === key) return shaded.path;
    const path = new Path2D(), cell = 2, { left, top, width, height } = plane.inner;
    for (let y = 0; y < height; y += cell) {
      let from = null;
      for (let x = 0; x <= width; x += cell) {
        const inside = x < width && growth(tableau, step * plane.atX(left + x + cell / 2), step * plane.atY(top + y + cell / 2)) <= 1;
        if (inside && from === null) from = x;
        if (!inside && from !== null) { path.rect(left + from, top + y, x - from, cell); from = null; }
      }
    }
    shaded = { key, path };
    return path;
  }

  function drawPlane() {
    const { eigenvaluesA, eigenvaluesW } = current;
    const all = [...(eigenvaluesA || []), ...(eigenvaluesW || [])];
    const reach = Math.max(0.5, 1.25 * Math.max(0, ...all.map(([re, im]) => Math.max(Math.abs(re), Math.abs(im)))));
    plane.begin();
    plane.x = plane.y = [-reach, reach];
    plane.clipped(() => { plane.pen.fillStyle = colours.region; plane.pen.fill(regionPath(reach)); });
    plane.axes("real part", "imaginary part");
    plane.clipped(() => {
      plane.line([[0, -reach], [0, reach]], colours.quiet, { width: 1 });
      for (const [re, im] of eigenvaluesA || []) plane.dot(re, im, colours.first, { radius: 4 });
      for (const [re, im] of eigenvaluesW || []) plane.dot(re, im, colours.second, { radius: 4 });
    });
    byId("plane-reading").textContent =
      `Largest real part: A ${show(largestReal(eigenvaluesA))}, W ${show(largestReal(eigenvaluesW))}.`;
  }

  function drawCircle(at) {
    const began = performance.now();
    if (seen === null || (at !== seen && began - done > 4 * cost)) { // a large network gets a fifth of the time
      const u = drive(current.network, current.samples[Math.min(at, STEPS - 1)]);
      values = eigenvalues(jacobianAt(current.system, current.a[at], u), current.system.n);
      seen = at;
      done = performance.now();
      cost = done - began;
    }
    const from1 = Math.max(0, ...(values || []).map(([re, im]) => Math.max(Math.abs(re), Math.abs(im))));
    const reach = Math.min(8, Math.max(1.3, 1.15 * from1));
    circle.begin();
    circle.x = circle.y = [-reach, reach];
    const { pen } = circle;
    const radius = circle.px(1) - circle.px(0);
    circle.clipped(() => {
      pen.beginPath();
      pen.arc(circle.px(0), circle.py(0), radius, 0, 2 * Math.PI);
      pen.fillStyle = colours.region;
      pen.fill();
    });
    circle.axes("real part", "imaginary part");
    circle.clipped(() => {
      pen.strokeStyle = colours.third;
      pen.beginPath();
      pen.arc(circle.px(0), circle.py(0), radius, 0, 2 * Math.PI);
      pen.stroke();
      for (const [re, im] of values || []) circle.dot(re, im, colours.first, { radius: 4 });
    });
    byId("circle-reading").textContent = values
      ? `Step ${seen}: spectral radius ${show(spectralRadius(values), 4)}${spectralRadius(values) < 1 ? ", inside the circle" : ", not inside the circle"}.`
      : `Step ${seen}: the state is no longer finite.`;
  }

  const connect = () => { [plane, circle] = [new Plot("plane", { square: true }), new Plot("circle", { square: true })]; };
  const update = () => { seen = null; };
  return { connect, update, drawPlane, drawCircle };
})();
