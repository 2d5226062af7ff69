// A square matrix as a picture with a view into it and a cursor; both work from the keyboard.

const WINDOW = 4;  // fewest points on a side of the view

function painted(canvas, values, n, low, high) {
  canvas.width = canvas.height = n;
  const pen = canvas.getContext("2d"), image = pen.createImageData(n, n), pixels = image.data;
  const scale = high > low ? 255 / (high - low) : 0;
  for (let k = 0; k < n * n; k++) {
    const colour = 4 * Math.max(0, Math.min(255, Math.round((values[k] - low) * scale)));
    pixels[4 * k] = COLOURS[colour];
    pixels[4 * k + 1] = COLOURS[colour + 1];
    pixels[4 * k + 2] = COLOURS[colour + 2];
    pixels[4 * k + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
}

// The names of the classes along the left and the lower edge of a map, each in the middle of what is seen of its class.
class Edges {
  constructor(left, below, member, names) {
    const pen = document.createElement("canvas").getContext("2d"), style = getComputedStyle(left);
    pen.font = `${style.fontSize} ${style.fontFamily}`;
    this.line = parseFloat(style.lineHeight);
    this.blocks = [];
    for (let i = 0; names.length && i < member.length; i++) {
      if (i && member[i] === member[i - 1]) { this.blocks.at(-1).end = i + 1; continue; }
      const name = names[member[i]], block = { start: i, end: i + 1, width: Math.ceil(pen.measureText(name).width) + 1 };
      for (const [side, edge] of [["left", left], ["below", below]]) {
        block[side] = document.createElement("span");
        block[side].textContent = name;
        edge.append(block[side]);
      }
      this.blocks.push(block);
    }
    this.n = member.length;
    this.below = below;
    const widest = Math.max(0, ...this.blocks.map((block) => block.width));
    this.reach = Math.min(widest, 7 * parseFloat(style.fontSize));  // longer names are cut
    left.style.width = widest ? `calc(${this.reach}px + 0.6rem)` : "0";
  }

  // Names lie below the map where each has room at its class, and stand there otherwise; of those that would touch the first is shown.
  place(view, side) {
    const key = [view.x, view.y, view.size, side].join();
    if (key === this.latest) return;
    this.latest = key;
    const upright = this.blocks.some((block) => block.width > ((block.end - block.start) / this.n) * side);
    this.below.classList.toggle("upright", upright);
    this.below.style.height = !this.blocks.length ? "0" : upright ? `calc(${this.reach}px + 0.6rem)` : `calc(${this.line}px + 0.6rem)`;
    for (const [edge, from] of [["left", view.y], ["below", view.x]]) {
      let until = -Infinity;
      for (const block of this.blocks) {
        const start = Math.max(block.start, from), end = Math.min(block.end, from + view.size), span = block[edge];
        const room = edge === "left" || upright ? this.line : block.width;
        const middle = Math.min(side - room / 2, Math.max(room / 2, (((start + end) / 2 - from) / view.size) * side));
        span.hidden = start >= end || middle - room / 2 < until;
        span.style[edge === "left" ? "top" : "left"] = `${((100 * middle) / side).toFixed(2)}%`;
        if (!span.hidden) until = middle + room / 2;
      }
    }
  }
}

class HeatMap {
  // `moved` is called with (row, column) whenever the cursor moves, `seen` with the view and the side of the canvas whenever it is drawn.
  constructor(canvas, n, member, moved, seen) {
    Object.assign(this, { canvas, n, member, moved, seen });
    this.source = document.createElement("canvas");
    this.view = { x: 0, y: 0, size: n };
    this.cursor = { row: 0, column: 0 };
    this.pointers = new Map();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  paint(values, low, high) {
    painted(this.source, values, this.n, low, high);
    this.draw();
  }

  draw() {
    const { canvas, view, n } = this, width = canvas.clientWidth;
    if (!width || !this.source.width) return;
    const side = Math.round(width * (window.devicePixelRatio || 1));
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const pen = canvas.getContext("2d"), unit = side / view.size;
    pen.imageSmoothingEnabled = false;
    pen.clearRect(0, 0, side, side);
    pen.drawImage(this.source, view.x, view.y, view.size, view.size, 0, 0, side, side);
    pen.fillStyle = "#fff";
    const thick = Math.max(1, side / 400);
    for (let i = 1; i < n; i++) {
      if (this.member[i] === this.member[i - 1]) continue;  // where a class ends
      pen.fillRect((i - view.x) * unit - thick / 2, 0, thick, side);
      pen.fillRect(0, (i - view.y) * unit - thick / 2, side, thick);
    }
    if (document.activeElement === canvas || this.hovered) this.mark(pen, unit, side);
    canvas.classList.toggle("zoomed", view.size < n);
    this.seen(view, width);
  }

  mark(pen, unit, side) {
    const size = Math.max(unit, 0.014 * side);
    const x = (this.cursor.column + 0.5 - this.view.x) * unit, y = (this.cursor.row + 0.5 - this.view.y) * unit;
    for (const [colour, thick] of [["#000", 5], ["#fff", 2]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = thick * (window.devicePixelRatio || 1) * 0.8;
      pen.strokeRect(x - size / 2, y - size / 2, size, size);
    }
  }

  zoom(factor, x = this.cursor.column + 0.5, y = this.cursor.row + 0.5) {
    const old = this.view, size = Math.min(this.n, Math.max(Math.min(WINDOW, this.n), old.size / factor));
    const share = size / old.size;
    this.view = { size, x: x - (x - old.x) * share, y: y - (y - old.y) * share };
    this.inside();
  }

  whole() {
    this.view = { x: 0, y: 0, size: this.n };
    this.draw();
  }

  inside() {
    const most = this.n - this.view.size;
    this.view.x = Math.min(most, Math.max(0, this.view.x));
    this.view.y = Math.min(most, Math.max(0, this.view.y));
    this.draw();
  }

  point(row, column, follow) {
    const last = this.n - 1;
    this.cursor = { row: Math.min(last, Math.max(0, row)), column: Math.min(last, Math.max(0, column)) };
    if (follow) {
      const { view, cursor } = this;
      view.x = Math.min(cursor.column, Math.max(cursor.column + 1 - view.size, view.x));
      view.y = Math.min(cursor.row, Math.max(cursor.row + 1 - view.size, view.y));
    }
    this.inside();
    this.moved(this.cursor.row, this.cursor.column);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return {
      x: this.view.x + ((event.clientX - box.left) / box.width) * this.view.size,
      y: this.view.y + ((event.clientY - box.top) / box.height) * this.view.size,
    };
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const by = event.shiftKey ? 10 : 1, { row, column } = this.cursor;
      const moves = { ArrowUp: [-by, 0], ArrowDown: [by, 0], ArrowLeft: [0, -by], ArrowRight: [0, by] };
      if (moves[event.key]) this.point(row + moves[event.key][0], column + moves[event.key][1], true);
      else if (event.key === "Home") this.point(0, 0, true);
      else if (event.key === "End") this.point(this.n - 1, this.n - 1, true);
      else if (event.key === "+" || event.key === "=") this.zoom(1.5);
      else if (event.key === "-") this.zoom(1 / 1.5);
      else if (event.key === "0") this.whole();
      else return;
      event.preventDefault();
    });
    canvas.addEventListener("focus", () => this.moved(this.cursor.row, this.cursor.column));
    for (const kind of ["focus", "blur"]) canvas.addEventListener(kind, () => this.draw());
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;  // the page scrolls past a map that nobody asked for
      event.preventDefault();
      const at = this.place(event);
      this.zoom(Math.exp(-0.0022 * event.deltaY * (event.deltaMode === 1 ? 20 : 1)), at.x, at.y);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.pointers.set(event.pointerId, this.place(event));
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    canvas.addEventListener("pointerleave", () => { this.hovered = false; this.draw(); });
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => this.pointers.delete(event.pointerId));
  }

  drag(event) {
    const at = this.place(event), from = this.pointers.get(event.pointerId);
    if (from && this.pointers.size === 1 && this.view.size < this.n) {
      this.view.x += from.x - at.x;  // what was under the pointer stays under it
      this.view.y += from.y - at.y;
      this.inside();
      return;
    }
    if (from && this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const distance = (a) => Math.hypot(a.x - other.x, a.y - other.y);
      this.zoom(distance(at) / Math.max(1e-6, distance(from)), other.x, other.y);
      this.pointers.set(event.pointerId, this.place(event));
      return;
    }
    this.hovered = true;
    this.point(Math.floor(at.y), Math.floor(at.x), false);
  }
}
