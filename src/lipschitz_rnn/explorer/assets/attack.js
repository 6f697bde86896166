// What a head says of a state, and the change of an image that makes it wrong.

const ATTACK_STEPS = 10;
const HEAVY = 1e6; // T·N² above which an attack takes one step only, so that the page stays responsive

function logits({ head }, h) {
  const scores = apply(head.weight, h);
  return head.bias ? scores.map((score, i) => score + head.bias[i]) : scores;
}

function softmax(scores) {
  const highest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - highest));
  const total = powers.reduce((sum, value) => sum + value, 0);
  return powers.map((value) => value / total);
}

const argmax = (values) => values.indexOf(Math.max(...values));
const asSamples = (pixels) => Array.from(pixels, (value) => Float64Array.of(value));

/** The gradient of the cross-entropy with respect to every pixel. */
function lossGradient(network, system, pixels, label) {
  const samples = asSamples(pixels);
  const states = run(system, network, samples);
  const chances = softmax(logits(network, states[samples.length]));
  const g = applyTransposed(network.head.weight, chances.map((chance, i) => chance - (i === label ? 1 : 0)));
  return Float64Array.from(backward(system, network, samples, states, g), (gradient) => gradient[0]);
}

/** Projected gradient ascent on the loss: no pixel moves by more than `size` or leaves [0, 1]. */
function attackPixels(network, system, pixels, label, size) {
  if (size === 0) return pixels;
  const steps = pixels.length * network.size ** 2 > HEAVY ? 1 : ATTACK_STEPS;
  const length = steps === 1 ? size : size / 4;
  let moved = Float64Array.from(pixels);
  for (let round = 0; round < steps; round++) {
    const gradient = lossGradient(network, system, moved, label);
    moved = moved.map((value, i) => {
      const wanted = value + length * Math.sign(gradient[i]);
      const near = Math.max(pixels[i] - size, Math.min(pixels[i] + size, wanted));
      return Math.max(0, Math.min(1, near));
    });
  }
  return moved;
}

/** Pixels with white noise, kept in [0, 1]. */
function noisyPixels(pixels, amount) {
  const noise = normals(pixels.length, 11);
  return pixels.map((value, i) => (amount === 0 ? value : Math.max(0, Math.min(1, value + amount * noise[i]))));
}
