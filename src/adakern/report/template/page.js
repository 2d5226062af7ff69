// The slider, and everything that follows it.

const PANELS = [kernelPanel, densityPanel, alignmentPanel, predictionPanel, tracePanel, alongPanel, wordsPanel];
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
const MORPH = 320;  // milliseconds from one solution to the next
let place = 0, moving = 0, timer = 0;

// Draw everything at a place between two solutions; whole numbers are solutions.
function drawAt(at) {
  place = at;
  const below = Math.floor(at), share = at - below;
  document.documentElement.style.setProperty("--now", LAST ? colourOf(at / LAST) : ITEMS[0].richness > 0 ? "var(--rich)" : "var(--lazy)");
  for (const panel of PANELS) panel.draw(ITEMS[below], share ? ITEMS[below + 1] : null, share);
}

function go(index, animate = true) {
  const to = Math.max(0, Math.min(LAST, index)), item = ITEMS[to];
  byId("slider").value = to;
  byId("slider").setAttribute("aria-valuetext", `${gamma(item)}, ${item.name}`);
  byId("richness").textContent = `${gamma(item)} (${item.name})`;
  for (const panel of PANELS) panel.settle?.(item);
  document.documentElement.dataset.item = to;
  cancelAnimationFrame(moving);
  if (!animate || CALM.matches || place === to) { drawAt(to); return; }
  const from = place, start = performance.now();
  const frame = (now) => {
    const done = Math.min(1, Math.max(0, (now - start) / MORPH)), eased = done * done * (3 - 2 * done);
    drawAt(done === 1 ? to : from + eased * (to - from));
    if (done < 1) moving = requestAnimationFrame(frame);
  };
  moving = requestAnimationFrame(frame);
}

function play(on) {
  clearInterval(timer);
  byId("play").setAttribute("aria-pressed", on);
  byId("play").textContent = on ? "Stop" : "Play";
  if (!on) return;
  if (Number(byId("slider").value) === LAST) go(0);
  timer = setInterval(() => {
    const next = Number(byId("slider").value) + 1;
    go(next);
    if (next >= LAST) play(false);
  }, 900);
}

// #sweep=2 opens the page at the third solution.
function fromAddress(animate) {
  const found = /sweep=(\d+)/.exec(location.hash);
  if (found) go(Number(found[1]), animate);
}

for (const panel of PANELS) panel.build();
if (LAST) {
  byId("sweep").hidden = false;
  const slider = byId("slider");
  slider.max = LAST;
  byId("ticks").innerHTML = ITEMS.map((item, i) => `<span style="left:${(100 * i) / LAST}%">${escaped(shown(item.richness, 3))}</span>`).join("");
  slider.addEventListener("input", () => { play(false); go(Number(slider.value)); });
  slider.addEventListener("change", () => { try { history.replaceState(null, "", `#sweep=${slider.value}`); } catch { /* an address that may not change */ } });
  byId("play").addEventListener("click", () => play(byId("play").getAttribute("aria-pressed") !== "true"));
  addEventListener("hashchange", () => fromAddress(true));
}
go(0, false);
fromAddress(false);
document.documentElement.dataset.ready = "yes";
