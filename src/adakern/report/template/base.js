// Data and small tools.
const DATA = JSON.parse(document.getElementById("data").textContent);
const ITEMS = DATA.items;
const byId = (id) => document.getElementById(id);

const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

function bytes(text) {
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found;
}

const kept = new Map();  // decoded arrays, by their text
function floats(text) {
  if (text == null) return null;
  if (!kept.has(text)) kept.set(text, new Float32Array(bytes(text).buffer));
  return kept.get(text);
}

// Correlations of a kernel, row by row, from the upper triangle.
const full = new WeakMap();
function correlations(kernel) {
  if (kernel == null) return null;
  if (!full.has(kernel)) {
    const n = floats(kernel.diagonal).length, codes = new Uint16Array(bytes(kernel.codes).buffer);
    const values = new Float32Array(n * n), step = (kernel.high - kernel.low) / 65535;
    for (let i = 0, k = 0; i < n; i++) {
      for (let j = i; j < n; j++, k++) values[i * n + j] = values[j * n + i] = kernel.low + step * codes[k];
    }
    full.set(kernel, values);
    kernel.codes = "";
  }
  return full.get(kernel);
}

// A number for reading.
function shown(x, digits = 4) {
  if (x == null || Number.isNaN(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const text = size >= 1e-3 && size < 1e5 ? String(Number(x.toPrecision(digits))) : x.toExponential(Math.max(0, digits - 2));
  return text.replace(/-/g, "−");
}

// Values between two solutions, for the eye alone, while the picture moves from one to the next.
function mixed(first, second, share) {
  if (share === 0 || !second) return first;
  if (share === 1 || !first || first.length !== second.length) return second;
  const found = new Float32Array(first.length);
  for (let i = 0; i < found.length; i++) found[i] = first[i] + share * (second[i] - first[i]);
  return found;
}

// Viridis, which every eye can read.
const COLOURS = (() => {
  const stops = "440154470d6048186a482374472d7b4537814240863e49893b528b375b8d33638d2f6b8e2c728e297a8e26828e23898e21918c1f988b1fa08822a78528ae8032b67a3fbc734ec36b5ec96270cf5784d44b98d83eaddc30c2df23d8e219ece51bfde725".match(/.{6}/g).map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const table = new Uint8ClampedArray(256 * 4);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (stops.length - 1), below = Math.min(Math.floor(place), stops.length - 2), share = place - below;
    for (let c = 0; c < 3; c++) table[4 * i + c] = stops[below][c] + share * (stops[below + 1][c] - stops[below][c]);
    table[4 * i + 3] = 255;
  }
  return table;
})();
