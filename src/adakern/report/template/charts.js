// Charts as SVG, redrawn at the size they have.

function niceStep(span, count) {
  const raw = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
}

function linearTicks(low, high, count) {
  const step = niceStep(high - low, count), found = [];
  if ((high - low) / step < 2 && count < 12) return linearTicks(low, high, count + 1);  // one or two say little of a scale
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  if (last < first) return [low, high];
  const by = Math.max(1, Math.ceil((last - first) / 5)), found = [];
  for (let k = first; k <= last; k += by) found.push(10 ** k);
  return found;
}

// Powers of ten as such, where their digits would be many.
function power(v) {
  const k = Math.round(Math.log10(v));
  if (Math.abs(k) < 3 || Math.abs(v / 10 ** k - 1) > 1e-6) return shown(v, 3);
  return `10${String(k).replace(/[-\d]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]))}`;
}

// The smallest range that holds finite values, with a little room.
function rangeOf(lists, room = 0.06) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const x of list || []) if (Number.isFinite(x)) { low = Math.min(low, x); high = Math.max(high, x); }
  if (low > high) return [0, 1];
  const pad = high > low ? room * (high - low) : Math.abs(high) * 0.1 || 1;
  return [low - pad, high + pad];
}

class Chart {
  constructor(id) {
    this.svg = byId(id);
    this.again = null;  // draws what was drawn last, at another size
    new ResizeObserver(() => this.again?.()).observe(this.svg);
  }

  // spec: {x: {range, label, ticks?, names?}, y: {range, label, log?}, describe, marks: (chart) => string}
  draw(spec) {
    const box = this.svg.getBoundingClientRect();
    if (!box.width) return;
    const width = box.width, height = box.height;
    const right = 10, top = 10, bottom = 38, { x, y } = spec;
    const yTicks = y.log ? logTicks(...y.range) : linearTicks(...y.range, Math.max(2, Math.floor(height / 55)));
    const yNames = yTicks.map((v) => (y.log ? power(v) : shown(v, 3)));
    const left = Math.max(52, 26 + 6.8 * Math.max(0, ...yNames.map((name) => name.length)));  // room for the longest
    this.svg.setAttribute("viewBox", `0 0 ${width.toFixed(1)} ${height.toFixed(1)}`);
    this.inner = { left, right: width - right, top, bottom: height - bottom };
    const to = (axis, from, until) => {
      const f = axis.log ? Math.log10 : (v) => v;
      const [a, b] = axis.range.map(f), span = b - a || 1;
      return (v) => from + ((f(v) - a) / span) * (until - from);
    };
    this.x = to(x, left, width - right);
    this.y = to(y, height - bottom, top);
    const xTicks = x.ticks || linearTicks(...x.range, Math.max(2, Math.floor(width / 85)));
    let body = "";
    for (const [i, v] of yTicks.entries()) {
      const at = this.y(v).toFixed(1);
      body += `<line class="grid" x1="${left}" x2="${width - right}" y1="${at}" y2="${at}"/><text x="${left - 6}" y="${at}" dy="0.35em" text-anchor="end">${escaped(yNames[i])}</text>`;
    }
    let until = -Infinity;
    for (const [i, v] of xTicks.entries()) {
      const at = this.x(v), name = x.names ? x.names[i] : shown(v, 3), reach = 4 + 3.6 * String(name).length;
      body += `<line class="axis" x1="${at.toFixed(1)}" x2="${at.toFixed(1)}" y1="${height - bottom}" y2="${height - bottom + 4}"/>`;
      if (at - reach < until) continue;  // names that would touch
      until = at + reach;
      body += `<text x="${at.toFixed(1)}" y="${height - bottom + 17}" text-anchor="middle">${escaped(name)}</text>`;
    }
    body += `<line class="axis" x1="${left}" x2="${width - right}" y1="${height - bottom}" y2="${height - bottom}"/>`;
    body += `<text x="${(left + width - right) / 2}" y="${height - 4}" text-anchor="middle">${escaped(x.label)}</text>`;
    body += `<text transform="translate(12 ${(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle">${escaped(y.label)}</text>`;
    this.svg.innerHTML = body + spec.marks(this);
    if (spec.describe) this.svg.setAttribute("aria-label", spec.describe);
  }

  clampY(v) { return Math.min(this.inner.bottom + 2, Math.max(this.inner.top - 6, this.y(v))); }

  line(xs, ys, colour, { width = 2, dash = "", opacity = 1 } = {}) {
    let path = "", pen = false;
    for (let i = 0; i < xs.length; i++) {
      const a = this.x(xs[i]), b = this.y(ys[i]);
      if (!Number.isFinite(a) || !Number.isFinite(b)) { pen = false; continue; }
      path += `${pen ? "L" : "M"}${a.toFixed(1)} ${this.clampY(ys[i]).toFixed(1)}`;
      pen = true;
    }
    return `<path d="${path}" fill="none" stroke="${colour}" stroke-width="${width}" stroke-linejoin="round" stroke-dasharray="${dash}" opacity="${opacity}"/>`;
  }

  dots(xs, ys, colour, { radius = 3.5, hollow = false, opacity = 1 } = {}) {
    let found = "";
    for (let i = 0; i < xs.length; i++) {
      const b = this.y(ys[i]);
      if (!(b >= this.inner.top - 6 && b <= this.inner.bottom + 6)) continue;
      found += `<circle cx="${this.x(xs[i]).toFixed(1)}" cy="${b.toFixed(1)}" r="${radius}"/>`;
    }
    return `<g fill="${hollow ? "var(--card)" : colour}" stroke="${hollow ? colour : "none"}" stroke-width="1.5" opacity="${opacity}">${found}</g>`;
  }

  bars(xs, lows, highs, colour, { width = 1.5, opacity = 1 } = {}) {
    let found = "";
    for (let i = 0; i < xs.length; i++) {
      if (!Number.isFinite(lows[i]) || !Number.isFinite(highs[i])) continue;
      const at = this.x(xs[i]).toFixed(1);
      found += `M${at} ${this.y(lows[i]).toFixed(1)}V${this.y(highs[i]).toFixed(1)}`;
    }
    return `<path d="${found}" stroke="${colour}" stroke-width="${width}" opacity="${opacity}"/>`;
  }

  // Steps over bins of equal width, filled down to the axis or as an outline.
  steps(low, high, values, colour, { fill = true, width = 1.6, dash = "" } = {}) {
    const step = (high - low) / values.length, floor = this.inner.bottom;
    let path = fill ? `M${this.x(low).toFixed(1)} ${floor}` : "";
    for (let i = 0; i < values.length; i++) {
      const at = values[i] > 0 ? Math.min(floor, this.clampY(values[i])) : floor;
      path += `${path ? "L" : "M"}${this.x(low + i * step).toFixed(1)} ${at.toFixed(1)}H${this.x(low + (i + 1) * step).toFixed(1)}`;
    }
    if (fill) return `<path d="${path}V${floor}Z" fill="${colour}" fill-opacity="0.45" stroke="${colour}" stroke-width="1.2"/>`;
    return `<path d="${path}" fill="none" stroke="${colour}" stroke-width="${width}" stroke-dasharray="${dash}"/>`;
  }
}

// A legend above a chart, which wraps where there is little room: [[text, colour, look], …], where a look is "dashed", "pale", "ring" or none.
const PALE = 0.45;  // opacity
function legend(id, entries) {
  byId(id).innerHTML = entries.map(([text, colour, look = ""]) => `<span class="${look}" style="--colour:${colour};--pale:${PALE}">${escaped(text)}</span>`).join("");
}
