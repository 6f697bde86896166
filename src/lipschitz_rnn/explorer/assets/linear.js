// Square matrices as flat Float64Arrays, row by row, and their eigenvalues.

const identity = (n) => {
  const result = new Float64Array(n * n);
  for (let i = 0; i < n; i++) result[i * n + i] = 1;
  return result;
};

function multiply(a, b, n) {
  const result = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < n; k++) {
      const factor = a[i * n + k];
      if (factor === 0) continue;
      for (let j = 0; j < n; j++) result[i * n + j] += factor * b[k * n + j];
    }
  }
  return result;
}

/** a x for a with as many columns as x has entries. */
function apply(a, x) {
  const columns = x.length;
  const result = new Float64Array(a.length / columns);
  for (let i = 0; i < result.length; i++) {
    let sum = 0;
    for (let j = 0; j < columns; j++) sum += a[i * columns + j] * x[j];
    result[i] = sum;
  }
  return result;
}

/** aᵀ x for a with as many rows as x has entries. */
function applyTransposed(a, x) {
  const columns = a.length / x.length;
  const result = new Float64Array(columns);
  for (let i = 0; i < x.length; i++) {
    for (let j = 0; j < columns; j++) result[j] += a[i * columns + j] * x[i];
  }
  return result;
}

const norm = (x) => Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));

/** An orthogonally similar matrix that is zero below the first subdiagonal, by Householder reflections. */
function hessenberg(matrix, n) {
  const h = Float64Array.from(matrix);
  const v = new Float64Array(n);
  for (let k = 0; k < n - 2; k++) {
    let length = 0;
    for (let i = k + 1; i < n; i++) length += h[i * n + k] ** 2;
    length = Math.sqrt(length);
    if (length === 0) continue;
    const sign = h[(k + 1) * n + k] < 0 ? -1 : 1;
    let square = 0;
    for (let i = k + 1; i < n; i++) {
      v[i] = h[i * n + k] + (i === k + 1 ? sign * length : 0);
      square += v[i] * v[i];
    }
    for (let j = 0; j < n; j++) {
      let sum = 0;
      for (let i = k + 1; i < n; i++) sum += v[i] * h[i * n + j];
      for (let i = k + 1; i < n; i++) h[i * n + j] -= (2 * sum * v[i]) / square;
    }
    for (let i = 0; i < n; i++) {
      let sum = 0;
      for (let j = k + 1; j < n; j++) sum += v[j] * h[i * n + j];
      for (let j = k + 1; j < n; j++) h[i * n + j] -= (2 * sum * v[j]) / square;
    }
  }
  return h;
}

/** Eigenvalues [real, imaginary] of a real matrix: QR steps with Wilkinson's shift. Null if they cannot be found. */
function eigenvalues(matrix, n) {
  if (!matrix.every(Number.isFinite)) return null;
  const re = hessenberg(matrix, n);
  const im = new Float64Array(n * n);
  const scale = norm(matrix);
  const found = [];
  for (let last = n - 1, rounds = 0; last >= 0; ) {
    let first = last;
    for (; first > 0; first--) {
      const at = first * n + first;
      const around = Math.hypot(re[at], im[at]) + Math.hypot(re[at - n - 1], im[at - n - 1]);
      if (Math.hypot(re[at - 1], im[at - 1]) <= 1e-15 * (around || scale)) break;
    }
    if (first === last) {
      found.push([re[last * n + last], im[last * n + last]]);
      last--;
      rounds = 0;
    } else if (rounds++ > 100) {
      return null;
    } else {
      const shift = rounds % 11 === 10 ? [re[last * n + last - 1], im[last * n + last - 1]] : cornerShift(re, im, n, last);
      qrStep(re, im, n, first, last, shift);
    }
  }
  return found;
}

/** The eigenvalue of the last 2 × 2 block that is closer to its last entry. */
function cornerShift(re, im, n, last) {
  const d = last * n + last;
  const [a, b, c] = [d - n - 1, d - n, d - 1];
  const halfRe = (re[a] - re[d]) / 2, halfIm = (im[a] - im[d]) / 2;
  const productRe = re[b] * re[c] - im[b] * im[c], productIm = re[b] * im[c] + im[b] * re[c];
  const squareRe = halfRe * halfRe - halfIm * halfIm + productRe, squareIm = 2 * halfRe * halfIm + productIm;
  const size = Math.hypot(squareRe, squareIm);
  let rootRe = Math.sqrt((size + squareRe) / 2 || 0), rootIm = Math.sqrt(Math.max(0, (size - squareRe) / 2));
  if (squareIm < 0) rootIm = -rootIm;
  if (halfRe * rootRe + halfIm * rootIm > 0) [rootRe, rootIm] = [-rootRe, -rootIm];
  return [re[d] + halfRe + rootRe, im[d] + halfIm + rootIm];
}

/** One step H − μ = QR, H ← RQ + μ on the rows and columns first … last, by complex Givens rotations. */
function qrStep(re, im, n, first, last, [shiftRe, shiftIm]) {
  for (let i = first; i <= last; i++) {
    re[i * n + i] -= shiftRe;
    im[i * n + i] -= shiftIm;
  }
  const rotations = [];
  for (let k = first; k < last; k++) {
    const p = k * n + k, q = p + n;
    const r = Math.hypot(re[p], im[p], re[q], im[q]) || 1;
    const [cRe, cIm, sRe, sIm] = r === 1 && re[p] === 0 && re[q] === 0 && im[p] === 0 && im[q] === 0
      ? [1, 0, 0, 0] : [re[p] / r, im[p] / r, re[q] / r, im[q] / r];
    rotations.push([cRe, cIm, sRe, sIm]);
    for (let j = k; j <= last; j++) {
      const x = k * n + j, y = x + n;
      const xRe = re[x], xIm = im[x], yRe = re[y], yIm = im[y];
      re[x] = cRe * xRe + cIm * xIm + sRe * yRe + sIm * yIm;
      im[x] = cRe * xIm - cIm * xRe + sRe * yIm - sIm * yRe;
      re[y] = cRe * yRe - cIm * yIm - sRe * xRe + sIm * xIm;
      im[y] = cRe * yIm + cIm * yRe - sRe * xIm - sIm * xRe;
    }
  }
  rotations.forEach(([cRe, cIm, sRe, sIm], place) => {
    const k = first + place;
    for (let i = first; i <= Math.min(k + 1, last); i++) {
      const x = i * n + k, y = x + 1;
      const xRe = re[x], xIm = im[x], yRe = re[y], yIm = im[y];
      re[x] = xRe * cRe - xIm * cIm + yRe * sRe - yIm * sIm;
      im[x] = xRe * cIm + xIm * cRe + yRe * sIm + yIm * sRe;
      re[y] = yRe * cRe + yIm * cIm - xRe * sRe - xIm * sIm;
      im[y] = yIm * cRe - yRe * cIm - xIm * sRe + xRe * sIm;
    }
  });
  for (let i = first; i <= last; i++) {
    re[i * n + i] += shiftRe;
    im[i * n + i] += shiftIm;
  }
}

/** An upper bound on ‖a‖₂: cyclic Jacobi rotations on aᵀa, then Gershgorin's circles around what is left. */
function spectralNormBound(matrix, n) {
  if (!matrix.every(Number.isFinite)) return Infinity;
  const transposed = new Float64Array(n * n);
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) transposed[j * n + i] = matrix[i * n + j];
  const s = multiply(transposed, matrix, n);
  const outside = () => {
    let sum = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) if (i !== j) sum += s[i * n + j] ** 2;
    return Math.sqrt(sum);
  };
  const scale = norm(s);
  for (let sweep = 0; sweep < 12 && outside() > 1e-13 * scale; sweep++) {
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) rotateAway(s, n, p, q);
  }
  let largest = 0;
  for (let i = 0; i < n; i++) {
    let circle = s[i * n + i];
    for (let j = 0; j < n; j++) if (j !== i) circle += Math.abs(s[i * n + j]);
    largest = Math.max(largest, circle);
  }
  return Math.sqrt(largest + 1e-13 * n * scale);
}

function rotateAway(s, n, p, q) {
  const off = s[p * n + q];
  if (off === 0) return;
  const ratio = (s[q * n + q] - s[p * n + p]) / (2 * off);
  const t = (ratio < 0 ? -1 : 1) / (Math.abs(ratio) + Math.sqrt(ratio * ratio + 1));
  const c = 1 / Math.sqrt(t * t + 1), d = t * c;
  for (let k = 0; k < n; k++) {
    const x = s[k * n + p], y = s[k * n + q];
    s[k * n + p] = c * x - d * y;
    s[k * n + q] = d * x + c * y;
  }
  for (let k = 0; k < n; k++) {
    const x = s[p * n + k], y = s[q * n + k];
    s[p * n + k] = c * x - d * y;
    s[q * n + k] = d * x + c * y;
  }
}
