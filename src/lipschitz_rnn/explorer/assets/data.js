// Numbers that the Python package wrote into this file.

function decode(packed) {
  const text = atob(packed.data);
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const [width, read] = packed.type === "float32" ? [4, "getFloat32"] : [8, "getFloat64"];
  return Float64Array.from({ length: bytes.length / width }, (_, at) => view[read](at * width, true));
}

const decodeAll = (value) => {
  if (Array.isArray(value)) return value.map(decodeAll);
  if (value === null || typeof value !== "object") return value;
  if (typeof value.data === "string" && Array.isArray(value.shape)) return decode(value);
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, decodeAll(inner)]));
};

const DATA = decodeAll(JSON.parse(document.getElementById("data").textContent));
const byId = (id) => document.getElementById(id);

/** A number for people: three digits, no trailing noise. */
const show = (value, digits = 3) => {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "not a number" : value > 0 ? "∞" : "−∞";
  const small = value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5);
  const text = small ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−").replace("e+", "e");
};
