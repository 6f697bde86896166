// The distance of the two trajectories on a logarithmic scale, beside what is proved about it.

const distance = (() => {
  let plot;
  const WHY = {
    package: "proved by lipschitz-rnn certify for this trained network",
    corners: "proved here: all corners of the slopes of σ, in the best quadratic metric found",
    centre: "proved here, in the Euclidean norm: slopes of σ as a ball around their middle",
  };

  const curve = (lengths) => lengths.map((length, t) => [t, Math.log10(Math.max(length, 1e-300))]);

  /** What is proved, in words. */
  function verdict() {
    const { certificate, system } = current;
    if (certificate.holds) {
      const rate = -Math.log(certificate.factor) / system.step;
      return `Certified factor per step ${certificate.factor.toFixed(6)}, rate ${show(rate)} per unit of time; ${WHY[certificate.method]}.`;
    }
    if (certificate.method === "package") return `Not certified: ${certificate.reason}.`;
    if (certificate.method === "none") return "No bound is computed here for more than two units with this integrator; lipschitz-rnn certify does it.";
    const coarse = certificate.method === "centre" ? " This bound is coarse; lipschitz-rnn certify searches for a better one." : "";
    return `Not certified: the best factor found is ${show(certificate.factor, 5)}, which is not below 1.${coarse}`;
  }

  function draw(at) {
    const { euclidean, inMetric, certificate } = current;
    const bound = inMetric && inMetric.map((_, t) => inMetric[0] * certificate.factor ** t);
    const lengths = [...euclidean, ...(inMetric || []), ...(bound || [])].filter((length) => Number.isFinite(length) && length > 1e-14);
    const [low, high] = [Math.min(...lengths, 1), Math.max(...lengths, 1e-3)].map(Math.log10);
    plot.begin();
    plot.x = [0, STEPS];
    plot.y = [Math.floor(Math.max(low, high - 16) - 0.05), Math.min(20, Math.ceil(high + 0.05))];
    if (plot.y[1] <= plot.y[0]) plot.y[1] = plot.y[0] + 1;
    plot.axes("step", "distance", { power: true });
    plot.clipped(() => {
      plot.line([[at, plot.y[0]], [at, plot.y[1]]], colours.line, { width: 1.5 });
      if (bound) plot.line(curve(bound), colours.second, { width: 2, dash: [7, 5] });
      if (inMetric) plot.line(curve(inMetric), colours.third, { width: 1.6 });
      plot.line(curve(euclidean), colours.first, { width: 2 });
      plot.dot(at, Math.log10(Math.max(euclidean[at], 1e-300)), colours.first);
    });
  }

  const connect = () => { plot = new Plot("distance"); };
  function update() {
    const { euclidean } = current;
    const last = euclidean[euclidean.length - 1];
    byId("distance-reading").textContent = `Distance ${show(euclidean[0])} at the start, ${show(last)} after ${STEPS} steps. ${verdict()}`;
  }
  return { connect, update, draw, verdict };
})();
