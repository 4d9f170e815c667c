// Attention between the points of a cloud and latents: both models' clouds are rotated together.

const data = JSON.parse(document.getElementById("data").textContent);
const WAYS = ["latents_to_tokens", "tokens_to_latents"];
const layered = data.models.filter((model) => model.layers.length);
const titles = layered.length ? merged(layered.map((model) => model.layers.map((layer) => layer.site))) : [];
const hasParts = data.models.some((model) => model.parts.length);
const state = { layer: 0, head: ALL, latent: ALL, way: WAYS[0], color: layered.length ? "attention" : "parts", zoom: 1, turn: null };

// --- rotation: the rows of a matrix -----------------------------------------------------------------------------------

const product = (a, b) => a.map((row) => [0, 1, 2].map((j) => row.reduce((sum, value, i) => sum + value * b[i][j], 0)));

// Rotate by angles in radians around the vertical and the horizontal axis of the screen.
function turned(matrix, across, down) {
  const [c, s, d, e] = [Math.cos(across), Math.sin(across), Math.cos(down), Math.sin(down)];
  return product(product([[1, 0, 0], [0, d, -e], [0, e, d]], [[c, 0, s], [0, 1, 0], [-s, 0, c]]), matrix);
}

const START = turned([[1, 0, 0], [0, 1, 0], [0, 0, 1]], 0.6, 0.35);
state.turn = START;

const range = (count) => [...Array(count).keys()];
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const partColor = (part) => css(data.colored.includes(part) ? `--series-${data.colored.indexOf(part)}` : "--muted");

class View {
  constructor(model, root) {
    Object.assign(this, { model, root });
    this.part("h2").textContent = model.name;
    this.part(".description").textContent = model.description;
    this.part(".predicted").textContent = model.predicted;
    this.part(".ramp").style.background = `linear-gradient(90deg, ${RAMP.map((each) => `rgb(${each})`).join(", ")})`;
    this.canvas = this.part("canvas");
    const cloud = this.part(".cloud");
    cloud.addEventListener("keydown", (pressed) => this.press(pressed));
    cloud.addEventListener("pointerdown", (event) => cloud.setPointerCapture(event.pointerId));
    cloud.addEventListener("pointermove", (event) => {
      if (!cloud.hasPointerCapture(event.pointerId)) return;
      look({ turn: turned(state.turn, event.movementX * 0.01, event.movementY * 0.01) });
    });
    cloud.addEventListener("wheel", (event) => {
      event.preventDefault();
      look({ zoom: state.zoom * Math.exp(-0.002 * event.deltaY) });
    }, { passive: false });
    new ResizeObserver(() => this.draw()).observe(cloud);
  }

  part(selector) {
    return this.root.querySelector(selector);
  }

  layer() {
    const title = titles[state.layer];
    return this.model.layers[typeof title === "number" ? title : this.model.layers.findIndex((each) => each.site === title)] ?? null;
  }

  // The attention of each of the layer's points: the mean over heads and latents, or the largest share of a latent where
  // points attend to all latents with a sum of 1; null: the layer has no such map.
  shares(layer) {
    const map = layer.maps[state.way];
    if (!map) return null;
    const { numbers, shape: [heads, rows, columns] } = (map.decoded ??= decoded(map));
    const inward = state.way === WAYS[0], [latents, points] = inward ? [rows, columns] : [columns, rows];
    const among = (index, count) => (index === ALL || index >= count ? range(count) : [index]);
    const [ours, chosen] = [among(state.head, heads), among(state.latent, latents)];
    const at = (h, m, s) => numbers[(h * rows + (inward ? m : s)) * columns + (inward ? s : m)];
    return range(points).map((s) => {
      const each = chosen.map((m) => mean(ours.map((h) => at(h, m, s))));
      return inward ? mean(each) : Math.max(...each);
    });
  }

  press(event) {
    const step = (name, list, by) => Math.min(Math.max(state[name] + by, ALL), field(list).options.length - 2);
    const angle = Math.PI / 12;
    const keys = {
      ArrowLeft: () => look({ turn: turned(state.turn, -angle, 0) }),
      ArrowRight: () => look({ turn: turned(state.turn, angle, 0) }),
      ArrowUp: () => look({ turn: turned(state.turn, 0, -angle) }),
      ArrowDown: () => look({ turn: turned(state.turn, 0, angle) }),
      "+": () => look({ zoom: state.zoom * 1.2 }),
      "-": () => look({ zoom: state.zoom / 1.2 }),
      0: () => look({ zoom: 1, turn: START }),
      "[": () => choose({ layer: state.layer - 1 }),
      "]": () => choose({ layer: state.layer + 1 }),
      ",": () => choose({ head: step("head", "head", -1) }),
      ".": () => choose({ head: step("head", "head", 1) }),
      p: () => choose({ latent: step("latent", "latent", -1) }),
      n: () => choose({ latent: step("latent", "latent", 1) }),
      v: () => choose({ way: WAYS[1 - WAYS.indexOf(state.way)] }),
    };
    if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  }

  // Set the color and the size of each point (null: a point without attention), and the texts.
  show() {
    const { parts, missing } = this.model, count = this.model.points.length / 3;
    const layer = this.layer(), shares = layer && this.shares(layer), byPart = state.color === "parts";
    this.colors = Array(count).fill(byPart || !missing ? null : css("--series-0"));
    this.sizes = Array(count).fill(0.4);
    this.part(".legend").replaceChildren();
    this.part(".scale").hidden = byPart || !shares;
    if (byPart) {
      this.colors = parts.length ? parts.map(partColor) : Array(count).fill(css("--series-0"));
      const own = data.colored.filter((part) => parts.includes(part)).map((part) => [`part ${part}`, partColor(part)]);
      const others = parts.some((part) => !data.colored.includes(part)) ? [["other parts", css("--muted")]] : [];
      this.part(".legend").append(...[...own, ...others].map(([name, fill]) => {
        const swatch = element("span");
        swatch.style.background = fill;
        return element("li", {}, [swatch, name]);
      }));
    } else if (shares) {
      const most = Math.max(...shares), places = layer.points ?? range(count);
      shares.forEach((share, i) => {
        const part = most ? share / most : 0;
        this.colors[places[i]] = `rgb(${color(part)})`;
        this.sizes[places[i]] = part;
      });
      this.part(".most").textContent = `0 to ${percent(most)}`;
    }
    this.part(".summary").textContent = this.summary(layer, shares, count);
    this.draw();
  }

  summary(layer, shares, count) {
    const { missing } = this.model;
    if (missing) return `No attention to show: ${missing}.`;
    if (state.color === "parts") return "";
    if (layer === null) return `${titles[state.layer]}: not a layer of this model.`;
    const inward = state.way === WAYS[0];
    if (shares === null) return `${layer.site}: ${inward ? "latents do not attend to points" : "points do not attend to latents"} in this layer.`;
    const { shape } = layer.maps[state.way], latents = shape[inward ? 1 : 2];
    const head = state.head === ALL || state.head >= shape[0] ? "mean of heads" : `head ${state.head}`;
    const everyone = inward ? "mean of latents" : "largest share of a latent";
    const latent = state.latent === ALL || state.latent >= latents ? everyone : `latent ${state.latent}`;
    const uniform = percent(1 / (inward ? shares.length : latents));
    const some = layer.points ? ` Only the layer’s ${new Set(layer.points).size} of ${count} points are colored.` : "";
    return `${layer.site}, ${head}, ${latent}: up to ${percent(Math.max(...shares))}; uniform attention would be ${uniform}.${some}`;
  }

  draw() {
    const side = this.canvas.clientWidth * devicePixelRatio, context = this.canvas.getContext("2d");
    if (!side || !this.colors) return;
    this.canvas.width = this.canvas.height = side;
    const [right, up, near] = state.turn, { points } = this.model, scale = 0.45 * side * state.zoom;
    const along = (row, i) => row[0] * points[3 * i] + row[1] * points[3 * i + 1] + row[2] * points[3 * i + 2];
    const depth = this.colors.map((_, i) => along(near, i));
    const radius = Math.min(Math.max(0.3 / Math.sqrt(depth.length), 0.005), 0.015) * side * Math.sqrt(state.zoom);
    context.strokeStyle = css("--ink");
    for (const i of range(depth.length).sort((a, b) => depth[a] - depth[b])) { // from back to front
      context.beginPath();
      const size = this.colors[i] === null ? 0.4 : 0.6 + 0.6 * this.sizes[i];
      context.arc(side / 2 + scale * along(right, i), side / 2 - scale * along(up, i), radius * size, 0, 2 * Math.PI);
      context.fillStyle = this.colors[i] ?? css("--line");
      context.fill();
      context.lineWidth = 0.4 * devicePixelRatio;
      if (this.colors[i] !== null) context.stroke();
    }
  }
}

const roots = [...document.querySelectorAll(".model")];
const views = data.models.map((model, index) => new View(model, roots[index]));

// Change the view of all clouds.
function look(change) {
  Object.assign(state, change);
  state.zoom = Math.min(Math.max(state.zoom, 0.5), 8);
  field("zoom").value = String(state.zoom);
  views.forEach((view) => view.draw());
}

// Change what the colors show.
function choose(change) {
  Object.assign(state, change);
  state.layer = Math.min(Math.max(state.layer, 0), titles.length - 1);
  const layers = views.map((view) => view.layer()).filter(Boolean);
  const sizes = layers.map((layer) => Object.entries(layer.maps).map(([way, { shape }]) => [shape[0], shape[way === WAYS[0] ? 1 : 2]])).flat();
  const [heads, latents] = [0, 1].map((axis) => Math.max(...sizes.map((each) => each[axis]), 0));
  if (state.head >= heads) state.head = ALL;
  if (state.latent >= latents) state.latent = ALL;
  showControls(state, layers, heads);
  const everyone = state.way === WAYS[0] ? "mean of all" : "largest of all";
  field("latent").replaceChildren(new Option(everyone, ALL), ...range(latents).map((m) => new Option(String(m), m)));
  for (const name of ["latent", "way", "color"]) field(name).value = String(state[name]);
  for (const each of document.querySelectorAll(".attention")) each.hidden = state.color === "parts";
  views.forEach((view) => view.show());
}

field("coloring").hidden = !(hasParts && layered.length);
field("layer").max = String(titles.length - 1);
for (const name of ["layer", "head", "latent"]) {
  field(name).addEventListener("input", (event) => choose({ [name]: Number(event.target.value) }));
}
for (const name of ["way", "color"]) field(name).addEventListener("input", (event) => choose({ [name]: event.target.value }));
field("zoom").addEventListener("input", (event) => look({ zoom: Number(event.target.value) }));
field("controls").addEventListener("submit", (event) => event.preventDefault());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => choose({}));

// open at the last layer in which latents attend to points
const shown = layered[0]?.layers ?? [], last = shown.findLastIndex((layer) => WAYS[0] in layer.maps);
choose({ layer: typeof titles[0] === "number" ? last : titles.indexOf(shown[last]?.site), way: WAYS[last < 0 ? 1 : 0] });
