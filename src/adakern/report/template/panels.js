// The panels. Each has draw(first, second, share): what lies between two neighbouring solutions, while the slider moves.

const colourOf = (place) => `color-mix(in oklch, var(--rich) ${(100 * place).toFixed(1)}%, var(--lazy))`;
const LAST = ITEMS.length - 1;
const gamma = (item) => `γ₀ = ${shown(item.richness)}`;
// What a legend says of a whole sweep: the colours of its members, in their order.
const SWEEP = [`the whole sweep, ${gamma(ITEMS[0])} to ${shown(ITEMS[LAST].richness)}`, `linear-gradient(to right, ${ITEMS.map((_, i) => colourOf(i / LAST)).join(", ")})`, "pale"];

const kernelPanel = (() => {
  const n = DATA.kernel.points.length, classes = DATA.kernel.classes;
  let layer = DATA.layers.length - 1, current = ITEMS[0], raw = false;
  const thumbs = [];

  const values = (item, which) => {
    const kernel = item.kernels[which], found = correlations(kernel);
    if (!found || !raw) return found;
    const size = floats(kernel.diagonal).map((v) => Math.sqrt(Math.max(0, v))), scaled = new Float32Array(n * n);
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) scaled[i * n + j] = found[i * n + j] * size[i] * size[j];
    return scaled;
  };

  // One scale of colours for a layer along the whole sweep.
  const ends = new Map();
  const range = (which) => {
    const key = `${which} ${raw}`;
    if (!ends.has(key)) {
      let low = Infinity, high = -Infinity;
      for (const item of ITEMS) for (const v of values(item, which) || []) { if (v < low) low = v; if (v > high) high = v; }
      if (!raw) high = 1;
      if (!(low < high)) low = Math.min(0, high);  // one point, or nothing but zeros
      ends.set(key, low < high ? [low, high] : [0, 1]);
    }
    return ends.get(key);
  };

  const read = (row, column) => {
    const kernel = current.kernels[layer];
    if (!kernel) { byId("reading").textContent = ""; return; }
    const found = correlations(kernel)[row * n + column], diagonal = floats(kernel.diagonal);
    const value = found * Math.sqrt(Math.max(0, diagonal[row] * diagonal[column]));
    const point = (i) => `point ${DATA.kernel.points[i]}${classes.length ? ` (${classes[DATA.kernel.member[i]]})` : ""}`;
    byId("reading").textContent = `${DATA.layers[layer]}, ${point(row)} with ${point(column)}: correlation ${shown(found)}, value ${shown(value)}`;
  };

  const names = new Edges(byId("map-left"), byId("map-below"), DATA.kernel.member, classes);
  const map = new HeatMap(byId("map"), n, DATA.kernel.member, read, (view, side) => names.place(view, side));
  let latest = [ITEMS[0], null, 0];

  const draw = (first, second, share) => {
    latest = [first, second, share];
    for (const which of DATA.layers.keys()) {
      const now = mixed(values(first, which), second && values(second, which), share), [low, high] = range(which);
      const empty = new Float32Array(n * n).fill(low);
      painted(thumbs[which], now || empty, n, low, high);
      if (which === layer) {
        map.paint(now || empty, low, high);
        byId("map").style.visibility = now ? "" : "hidden";
        byId("map-none").hidden = !!now;
        byId("bar-low").textContent = shown(low, 3);
        byId("bar-high").textContent = shown(high, 3);
      }
    }
  };

  const choose = (which, focus) => {
    layer = which;
    for (const [i, tab] of [...byId("layers").children].entries()) {
      tab.setAttribute("aria-selected", i === which);
      tab.tabIndex = i === which ? 0 : -1;
      if (i === which && focus) tab.focus();
    }
    byId("map-panel").setAttribute("aria-labelledby", `layer-${which}`);
    byId("map").setAttribute("aria-label", `Kernel ${DATA.layers[which]}, ${n} by ${n} points`);
    draw(...latest);
    read(map.cursor.row, map.cursor.column);
  };

  const build = () => {
    for (const [i, name] of DATA.layers.entries()) {
      const tab = document.createElement("button"), canvas = document.createElement("canvas"), label = document.createElement("span");
      Object.assign(tab, { type: "button", id: `layer-${i}` });
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", "map-panel");
      canvas.setAttribute("aria-hidden", "true");
      label.textContent = name;
      tab.append(canvas, label);
      tab.addEventListener("click", () => choose(i, false));
      thumbs.push(canvas);
      byId("layers").append(tab);
    }
    tabKeys(byId("layers"), (i) => choose(i, true));
    byId("closer").addEventListener("click", () => map.zoom(1.6, map.view.x + map.view.size / 2, map.view.y + map.view.size / 2));
    byId("farther").addEventListener("click", () => map.zoom(1 / 1.6, map.view.x + map.view.size / 2, map.view.y + map.view.size / 2));
    byId("whole").addEventListener("click", () => map.whole());
    for (const radio of document.querySelectorAll("input[name=scale]")) {
      radio.addEventListener("change", () => { raw = radio.value === "value"; draw(...latest); });
    }
    const bar = byId("bar").getContext("2d"), strip = bar.createImageData(256, 1);
    strip.data.set(COLOURS);
    bar.putImageData(strip, 0, 0);
    byId("notes").innerHTML = DATA.notes.map((note) => `<p>${escaped(note)}</p>`).join("");
    choose(layer, false);
  };

  return { build, draw, settle: (item) => { current = item; read(map.cursor.row, map.cursor.column); } };
})();

// Arrow keys among tabs.
function tabKeys(list, choose) {
  list.addEventListener("keydown", (event) => {
    const tabs = [...list.querySelectorAll("[role=tab]:not([hidden])")], at = tabs.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    choose((to + tabs.length) % tabs.length);
  });
}

const options = (id, names) => {
  byId(id).innerHTML = names.map((name, i) => `<option value="${i}">${escaped(name)}</option>`).join("");
};

const densityPanel = (() => {
  const { points, bins } = DATA.density, ends = floats(DATA.density.ends), chart = new Chart("density");
  const depth = ends.length / 2 / points.length;
  let layer = depth - 1, point = 0, latest = [ITEMS[0], null, 0];
  const heights = (item) => floats(item.density.heights).subarray((layer * points.length + point) * bins, (layer * points.length + point + 1) * bins);

  const draw = (first, second, share) => {
    latest = [first, second, share];
    const place = layer * points.length + point, low = ends[2 * place], high = ends[2 * place + 1], log = byId("density-log").checked;
    const now = mixed(heights(first), second && heights(second), share);
    const spread = mixed(floats(first.density.spreads), second && floats(second.density.spreads), share)[place];
    const all = ITEMS.map(heights);
    let top = 0, least = Infinity;
    for (const list of all) for (const v of list) { top = Math.max(top, v); if (v > 0) least = Math.min(least, v); }
    // Of a few neurons, or of nothing but zeros, spikes would press everything else flat.
    const tallest = Math.max(...all.map((list) => [...list].sort((a, b) => b - a)[Math.min(2, bins - 1)]));
    if (!log && tallest > 0) top = Math.min(top, 2.5 * tallest);
    const range = log ? [Math.max(least * 0.6, top * 1e-5), top * 2.5] : [0, top * 1.08 || 1];
    const h = Array.from({ length: 181 }, (_, i) => low + (i / 180) * (high - low));
    const gauss = spread > 0 ? h.map((v) => Math.exp(-0.5 * (v / spread) ** 2) / (spread * Math.sqrt(2 * Math.PI))) : [];
    const entries = [["this solution", "var(--now)"], ["Gaussian of the same variance", "var(--muted)", "dashed"]];
    if (LAST) entries.push([`${ITEMS[0].name}, ${gamma(ITEMS[0])}`, "var(--lazy)"]);
    legend("density-legend", entries);
    chart.again = () => draw(...latest);
    chart.draw({
      x: { range: [low, high], label: `preactivation h${"⁰¹²³⁴⁵⁶⁷⁸⁹".charAt(layer + 1) || `, layer ${layer + 1}`}` },
      y: { range, label: "density", log },
      describe: `Density of the preactivation of point ${points[point]} at layer ${layer + 1}, standard deviation ${shown(spread, 3)}`,
      marks: (c) => c.steps(low, high, now, "var(--now)") + (LAST ? c.steps(low, high, heights(ITEMS[0]), "var(--lazy)", { fill: false }) : "")
        + c.line(h.slice(0, gauss.length), gauss, "var(--muted)", { dash: "5 4", width: 1.6 }),
    });
    const target = second && share > 0.5 ? second : first;
    byId("density-law").textContent = `${target.density.law[layer]}${DATA.density.position ? `, ${DATA.density.position}` : ""}; standard deviation ${shown(spread, 3)}.`;
  };

  const build = () => {
    options("density-layer", Array.from({ length: depth }, (_, i) => String(i + 1)));
    options("density-point", points.map((p, i) => `${p}${DATA.density.classes[i] ? ` (${DATA.density.classes[i]})` : ""}`));
    byId("density-layer").value = layer;
    byId("density-layer").addEventListener("change", (event) => { layer = Number(event.target.value); draw(...latest); });
    byId("density-point").addEventListener("change", (event) => { point = Number(event.target.value); draw(...latest); });
    byId("density-log").addEventListener("change", () => draw(...latest));
  };
  return { build, draw };
})();

const alignmentPanel = (() => {
  const chart = new Chart("alignment"), places = DATA.layers.map((_, i) => i);
  const nothing = (list) => list.map((v) => (v == null ? NaN : v));
  const lists = ITEMS.map((item) => nothing(item.alignment));
  let latest;
  const draw = (first, second, share) => {
    latest = [first, second, share];
    const now = mixed(lists[ITEMS.indexOf(first)], second && lists[ITEMS.indexOf(second)], share);
    const [low, high] = rangeOf(lists);
    const y = { range: [Math.min(0, low), Math.max(high, 1)], label: "alignment" };
    const feature = DATA.layers.at(-1) === "K" ? places.length - 1 : places.length;
    legend("alignment-legend", LAST ? [["this solution", "var(--now)"], SWEEP] : []);
    chart.again = () => draw(...latest);
    chart.draw({
      x: { range: [-0.3, places.length - 0.7], label: "kernel", ticks: places, names: DATA.layers },
      y,
      describe: `Label alignment: ${DATA.layers.map((name, i) => `${name} ${shown(now[i], 3)}`).join(", ")}`,
      marks: (c) => lists.map((list, i) => (LAST ? c.line(places.slice(0, feature), list.slice(0, feature), colourOf(i / LAST), { width: 1.2, opacity: PALE }) : "")).join("")
        + c.line(places.slice(0, feature), now.slice(0, feature), "var(--now)", { width: 3 }) + c.dots(places, now, "var(--now)", { radius: 5 }),
    });
  };
  const settle = (item) => {
    const head = `<tr><th scope="col">${LAST ? "γ₀" : ""}</th>${DATA.layers.map((name) => `<th scope="col">${escaped(name)}</th>`).join("")}</tr>`;
    byId("alignment-table").innerHTML = head + ITEMS.map((one) => `<tr${one === item && LAST ? ' class="now"' : ""}><th scope="row">${escaped(LAST ? shown(one.richness) : one.name)}</th>${one.alignment.map((v) => `<td>${escaped(shown(v))}</td>`).join("")}</tr>`).join("");
  };
  return { build: () => {}, draw, settle };
})();

const predictionPanel = (() => {
  const chart = new Chart("predictions"), outputs = DATA.outputs;
  let set = "train", output = 0, latest;
  const column = (list, which = output) => (list ? Array.from({ length: list.length / outputs }, (_, i) => list[i * outputs + which]) : null);
  const draw = (first, second, share) => {
    latest = [first, second, share];
    const about = DATA[set], places = about.index.map((_, i) => i);
    const now = column(mixed(floats(first[set].f), second && floats(second[set].f), share));
    const truth = column(floats(about.y));
    const wide = second && share > 0.5 ? second[set] : first[set];
    const spread = floats(wide.spread), error = column(floats(wide.std));
    const range = rangeOf([...ITEMS.flatMap((item) => [column(floats(item[set].f))]), truth || []], 0.09);
    legend("predictions-legend", [["prediction f", "var(--now)"], ...(truth ? [["target y", "var(--ink)"]] : [])]);
    chart.again = () => draw(...latest);
    chart.draw({
      x: { range: [-0.5, Math.max(0.5, places.length - 0.5)], label: `${about.index.length < about.count ? `${about.index.length} of ` : ""}${about.count} point${about.count === 1 ? "" : "s"}${about.sorted ? ", sorted by target" : ""}` },
      y: { range, label: "output" },
      describe: `${set === "train" ? "Training" : "Test"} predictions of ${places.length} points`,
      marks: (c) => (spread ? c.bars(places, now.map((f, i) => f - spread[i]), now.map((f, i) => f + spread[i]), "var(--now)", { opacity: 0.35, width: 2.5 }) : "")
        + (error ? c.bars(places, now.map((f, i) => f - 2 * error[i]), now.map((f, i) => f + 2 * error[i]), "var(--now)", { opacity: 0.6 }) : "")
        + c.dots(places, now, "var(--now)", { radius: places.length > 150 ? 2.3 : 3.4, opacity: 0.85 })
        + (truth ? c.bars(places, truth.map((v) => v - 0.004 * (range[1] - range[0])), truth.map((v) => v + 0.004 * (range[1] - range[0])), "var(--ink)", { width: Math.max(3, Math.min(10, 420 / places.length)) }) : ""),
    });
  };
  const settle = (item) => {
    const found = item[set], parts = [];
    if (found.loss != null) parts.push(`mean squared error${found.spread ? " with the variance" : ""} ${shown(found.loss)}`);
    if (found.accuracy != null) parts.push(`accuracy ${shown(100 * found.accuracy)} %`);
    if (found.std) parts.push("bars: two Monte-Carlo standard errors");
    if (found.spread) parts.push("pale bars: one standard deviation of the posterior");
    if (set === "test" && !DATA.test.y) parts.push("no targets were given");
    const where = set === "test" && DATA.test.name ? ` (${DATA.test.name})` : "";
    byId("scores").textContent = `${set === "train" ? "Training" : "Test"} points${where}: ${parts.join("; ")}.`;
  };
  const choose = (name, focus) => {
    set = name;
    for (const tab of ["train", "test"]) {
      const button = byId(`tab-${tab}`);
      button.setAttribute("aria-selected", tab === name);
      button.tabIndex = tab === name ? 0 : -1;
      if (tab === name && focus) button.focus();
    }
    byId("predictions-panel").setAttribute("aria-labelledby", `tab-${name}`);
    draw(...latest);
    settle(latest[1] && latest[2] > 0.5 ? latest[1] : latest[0]);
  };
  const build = () => {
    byId("tab-test").hidden = !DATA.test;
    for (const tab of ["train", "test"]) byId(`tab-${tab}`).addEventListener("click", () => choose(tab, false));
    tabKeys(byId("sets"), (i) => choose(["train", "test"][i], true));
    byId("output-label").hidden = outputs === 1;
    options("output", Array.from({ length: outputs }, (_, i) => DATA.kernel.classes[i] && DATA.kernel.classes.length === outputs ? `${i} (${DATA.kernel.classes[i]})` : String(i)));
    byId("output").addEventListener("change", (event) => { output = Number(event.target.value); draw(...latest); });
  };
  return { build, draw, settle };
})();

const tracePanel = (() => {
  const chart = new Chart("trace");
  const settle = (item) => {
    const [line] = item.trace, svg = byId("trace");
    svg.style.display = line ? "" : "none";
    if (!line) {
      byId("trace-about").textContent = "This solution was found in closed form, or by a method that leaves no trace.";
      return;
    }
    // The first descent is steep; what matters is where the values end.
    const tail = line.values.slice(Math.floor(line.values.length / 10));
    const positive = line.values.filter((v) => v > 0);
    const [low, high] = line.log ? [Math.min(...positive) / 2, Math.max(...positive) * 2] : rangeOf([tail, line.level ? [line.level[0] - 3 * line.level[1], line.level[0] + 3 * line.level[1]] : []]);
    chart.again = () => settle(item);
    chart.draw({
      x: { range: [line.x[0] > 0.3 * line.x.at(-1) && line.x.length > 1 ? line.x[0] : Math.min(0, line.x[0]), line.x.at(-1) || 1], label: line.along },
      y: { range: [low, high], label: line.what, log: line.log },
      describe: `${line.what} along ${line.along}`,
      marks: (c) => {
        const ends = [c.inner.left, c.inner.right];
        let band = "";
        if (line.level) {
          const [mean, error] = line.level, top = c.clampY(mean + 2 * error), bottom = c.clampY(mean - 2 * error);
          band = `<rect x="${ends[0]}" width="${ends[1] - ends[0]}" y="${top}" height="${Math.max(1, bottom - top)}" fill="var(--now)" opacity="0.2"/><line x1="${ends[0]}" x2="${ends[1]}" y1="${c.y(mean)}" y2="${c.y(mean)}" stroke="var(--muted)" stroke-dasharray="5 4"/>`;
        }
        return band + c.line(line.x, line.values, "var(--now)") + (line.x.length < 80 ? c.dots(line.x, line.values, "var(--now)", { radius: 2.5 }) : "");
      },
    });
    const said = line.level ? [`Dashed: mean ${shown(line.level[0])} ± ${shown(line.level[1], 2)} of the averaged end; the band is two standard errors, with autocorrelation.`] : [];
    if (line.values.some((v) => v > high)) said.push("The steep beginning lies beyond the top.");
    byId("trace-about").textContent = said.join(" ");
  };
  const build = () => {
    const none = ITEMS.every((item) => !item.trace.length);
    byId("convergence").hidden = none;
    byId("solved").classList.toggle("broad", LAST > 0 || !none);  // fills its row
  };
  return { build, draw: () => {}, settle };
})();

const alongPanel = (() => {
  const chart = new Chart("along-chart"), last = DATA.layers.at(-1) === "K" ? DATA.layers.length - 2 : DATA.layers.length - 1;
  const readings = [
    [`label alignment of ${DATA.layers[last]}`, (item) => item.alignment[last], false],
    ["mean squared error, training points", (item) => item.train.loss, false],
    ["residual of the equations", (item) => item.residual, true],
  ];
  if (DATA.test && ITEMS[0].test.loss != null) readings.splice(1, 0, ["mean squared error, test points", (item) => item.test.loss, false]);
  let which = 0, latest;
  const draw = (first, second, share) => {
    latest = [first, second, share];
    if (!LAST) return;
    const [name, get, log] = readings[which], xs = ITEMS.map((item) => item.richness), ys = ITEMS.map((item) => get(item) ?? NaN);
    const [a, b] = [first, second || first].map((item) => ITEMS.indexOf(item)), at = xs[a] + share * (xs[b] - xs[a]), value = ys[a] + share * (ys[b] - ys[a]);
    const positive = ys.filter((v) => v > 0), useLog = log && positive.length > 0;
    legend("along-legend", [["this solution", "var(--now)", "ring"]]);
    const y = useLog ? { range: [Math.min(...positive) / 2, Math.max(...positive) * 2], label: "", log: true } : { range: rangeOf([ys], 0.12), label: "" };
    chart.again = () => draw(...latest);
    chart.draw({
      x: { range: rangeOf([xs]), label: "richness γ₀" }, y,
      describe: `${name} against richness: ${xs.map((x, i) => `${shown(x)}: ${shown(ys[i])}`).join(", ")}`,
      marks: (c) => c.line(xs, ys, "var(--muted)", { width: 1.6 }) + xs.map((x, i) => c.dots([x], [ys[i]], colourOf(i / LAST), { radius: 4 })).join("")
        + c.dots([at], [value], "var(--now)", { radius: 8, hollow: true }),
    });
  };
  const build = () => {
    byId("along").hidden = !LAST;
    options("along-what", readings.map(([name]) => name));
    byId("along-what").addEventListener("change", (event) => { which = Number(event.target.value); draw(...latest); });
  };
  return { build, draw };
})();

const wordsPanel = (() => {
  const table = (id, rows) => {
    byId(id).innerHTML = rows.map(([name, value, meaning]) => `<tr><th scope="row">${escaped(name)}</th><td>${escaped(value)}${meaning ? `<small>${escaped(meaning)}</small>` : ""}</td></tr>`).join("");
  };
  const settle = (item) => {
    const badge = byId("badge");
    badge.textContent = item.converged ? "converged" : "not converged";
    badge.className = `badge ${item.converged ? "good" : "bad"}`;
    byId("status").textContent = item.status;
    const facts = Object.fromEntries(item.summary);
    byId("numbers").textContent = [facts.network, facts.data, facts.numbers].join(" · ");
    table("summary", item.summary);
    table("evidence", item.evidence);
    table("rest", item.rest);
  };
  return { build: () => { byId("version").textContent = DATA.version; }, draw: () => {}, settle };
})();
