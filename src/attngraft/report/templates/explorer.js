// A query is {down, across}, a position relative to the image's sides, {prefix}, the name of a prefix token, or {latent}, an
// index. Its attention is {map, prefix, latents}: a number per position, prefix token and latent; empty if there are none.
class Layer {
  constructor(plain) {
    Object.assign(this, plain);
    this.decoded = null; // on demand: a page may hold millions of numbers
  }

  tensors() {
    this.decoded ??= this.numbers.map((numbers) => numbers && decoded(numbers));
    return this.decoded;
  }

  place({ down, across }) {
    const row = Math.min(this.rows - 1, Math.floor(down * this.rows));
    const column = Math.min(this.columns - 1, Math.floor(across * this.columns));
    return row * this.columns + column;
  }

  get count() {
    const [toTokens, toLatents] = this.numbers;
    return this.kind !== "latents" ? 0 : toTokens ? toTokens.shape[1] : toLatents.shape[2];
  }

  // Whether this layer has the token of a query.
  has(query) {
    if (query.prefix !== undefined) return this.prefix.includes(query.prefix);
    return query.latent === undefined || query.latent < this.count;
  }

  attention(query, head, direction) {
    const heads = head === ALL ? [...Array(this.heads).keys()] : [head];
    const parts = heads.map((each) => this[this.kind](query, each, direction));
    const mean = (rows) => rows[0]?.map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length) ?? [];
    return {
      map: mean(parts.map((part) => part.map)),
      prefix: mean(parts.map((part) => part.prefix)),
      latents: mean(parts.map((part) => part.latents)),
    };
  }

  maps(query, head, direction) {
    const [{ numbers, shape: [, heads, tokens] }] = this.tensors();
    const own = query.prefix === undefined ? this.places[this.place(query)] : this.prefix.indexOf(query.prefix);
    const window = Math.floor(own / tokens), slot = own % tokens;
    const start = (window * heads + head) * tokens * tokens;
    const at = (other) => numbers[direction === "to" ? start + slot * tokens + other : start + other * tokens + slot];
    const map = this.places.map((token) => (Math.floor(token / tokens) === window ? at(token % tokens) : 0));
    return { map, prefix: this.prefix.map((_, index) => at(index)), latents: [] };
  }

  filters(query, head, direction) {
    const [{ numbers, shape: [, offsets, rows, columns] }] = this.tensors();
    const side = Math.round(Math.sqrt(offsets)), reach = (side - 1) / 2;
    const own = this.place(query), row = Math.floor(own / columns), column = own % columns;
    const map = new Array(rows * columns).fill(0);
    for (let offset = 0; offset < offsets; offset++) {
      const sign = direction === "to" ? 1 : -1;
      const down = row + sign * (Math.floor(offset / side) - reach);
      const across = column + sign * ((offset % side) - reach);
      if (down < 0 || down >= rows || across < 0 || across >= columns) continue;
      const other = down * columns + across;
      map[other] = numbers[(head * offsets + offset) * rows * columns + (direction === "to" ? own : other)];
    }
    return { map, prefix: [], latents: [] };
  }

  // Attention between tokens passes through the latents: the product of both maps.
  latents(query, head, direction) {
    const [fromLatents, fromTokens] = this.tensors(), count = this.count, tokens = this.rows * this.columns;
    const toToken = (latent, token) => (fromLatents ? fromLatents.numbers[(head * count + latent) * tokens + token] : 0);
    const toLatent = (token, latent) => (fromTokens ? fromTokens.numbers[(head * tokens + token) * count + latent] : 0);
    const all = [...Array(count).keys()], places = [...Array(tokens).keys()];
    if (query.latent !== undefined) {
      const map = places.map((token) =>
        direction === "to" ? toToken(query.latent, token) : toLatent(token, query.latent));
      return { map, prefix: [], latents: [] };
    }
    const own = this.place(query);
    const latents = all.map((latent) => (direction === "to" ? toLatent(own, latent) : toToken(latent, own)));
    const map = places.map((token) =>
      all.reduce((sum, latent) =>
        sum + latents[latent] * (direction === "to" ? toToken(latent, token) : toLatent(token, latent)), 0));
    return { map, prefix: [], latents };
  }
}

// --- the page --------------------------------------------------------------------------------------------------------

const data = JSON.parse(document.getElementById("data").textContent);
const models = data.models.map((model) => ({ ...model, layers: model.layers.map((layer) => new Layer(layer)) }));
const state = { query: { down: 0.5, across: 0.5 }, pinned: false, layer: 0, head: ALL, direction: "to", shade: 0.6, picture: "" };
const titles = merged(models.map((model) => model.layers.map((layer) => layer.site)));

class View {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.cells = [];
    this.part("h2").textContent = model.name;
    this.part(".description").textContent = model.description;
    this.part(".predicted").textContent = model.predicted;
    this.part(".predicted").hidden = model.predicted === "";
    this.part(".legend").append(...model.legend.map(({ name, color, shares }) => {
      const patch = element("span");
      patch.style.background = color;
      return element("li", {}, [patch, `${name} (${shares})`]);
    }));
    this.part(".legend").hidden = model.legend.length === 0;
    this.part(".ramp").style.background =
      `linear-gradient(90deg, ${RAMP.map(([r, g, b]) => `rgb(${r}, ${g}, ${b})`).join(", ")})`;
    this.tokens();
    this.overview();
    this.charts();
    this.skipped();
    const picture = this.part(".picture");
    for (const event of ["pointerdown", "pointermove"]) picture.addEventListener(event, (moved) => this.point(moved));
    picture.addEventListener("keydown", (pressed) => this.press(pressed));
  }

  part(selector) {
    return this.root.querySelector(selector);
  }

  // This model's index of the selected layer, or of the layer that it belongs to; -1 if there is none.
  index() {
    const { layers } = this.model, title = titles[state.layer];
    if (typeof title === "number") return Math.min(title, layers.length - 1);
    const own = layers.findIndex((layer) => layer.site === title);
    return own >= 0 ? own : layers.findIndex((layer) => layer.site.split(": ")[0] === title.split(": ")[0]);
  }

  layer() {
    return this.model.layers[this.index()] ?? null;
  }

  // Pointing selects a patch; a click or tap pins it, and another one there releases it.
  point(event) {
    const box = this.part(".picture").getBoundingClientRect();
    const down = (event.clientY - box.top) / box.height, across = (event.clientX - box.left) / box.width;
    if (down < 0 || down >= 1 || across < 0 || across >= 1) return;
    if (event.type === "pointermove" && state.pinned && !event.buttons) return;
    const layer = this.layer() ?? this.model.layers[0];
    const again = state.pinned && state.query.down !== undefined && layer.place(state.query) === layer.place({ down, across });
    choose({ query: { down, across }, pinned: event.type === "pointermove" ? state.pinned : !again });
  }

  // Keys work while the image has the focus.
  press(event) {
    const heads = Number(field("head").options.length) - 1;
    const keys = {
      "[": () => choose({ layer: state.layer - 1 }),
      "]": () => choose({ layer: state.layer + 1 }),
      ",": () => choose({ head: Math.max(ALL, state.head - 1) }),
      ".": () => choose({ head: Math.min(heads - 1, state.head + 1) }),
      v: () => choose({ direction: state.direction === "to" ? "from" : "to" }),
      Escape: () => choose({ pinned: false }),
    };
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const bracket = event.key === "[" || event.key === "]"; // AltGr or Option on some keyboards
    if (!bracket && (event.ctrlKey || event.metaKey || event.altKey)) return;
    keys[event.key]?.();
    if (!(event.key in moves)) return;
    event.preventDefault();
    const layer = this.layer() ?? this.model.layers[0], [down, across] = moves[event.key];
    const place = state.query.down === undefined ? layer.place({ down: 0.5, across: 0.5 }) : layer.place(state.query);
    const row = Math.min(layer.rows - 1, Math.max(0, Math.floor(place / layer.columns) + down));
    const column = Math.min(layer.columns - 1, Math.max(0, (place % layer.columns) + across));
    choose({ query: { down: (row + 0.5) / layer.rows, across: (column + 0.5) / layer.columns }, pinned: true });
  }

  // Prefix tokens and latents, which have no position on the image.
  tokens() {
    const prefix = [...new Set(this.model.layers.flatMap((layer) => layer.prefix))];
    const latents = Math.max(0, ...this.model.layers.map((layer) => layer.count));
    const button = (text, query) =>
      element("button", { type: "button", textContent: text, onclick: () => choose({ query, pinned: true }) });
    this.buttons = [
      ...prefix.map((name) => [button(name, { prefix: name }), { prefix: name }]),
      ...[...Array(latents).keys()].map((index) => [button(`latent ${index}`, { latent: index }), { latent: index }]),
    ];
    this.part(".tokens").append(...this.buttons.map(([each]) => each));
    this.part(".tokens").hidden = this.buttons.length === 0;
  }

  // The index, among the layers of all models, of a layer of this model.
  shared(index) {
    return typeof titles[0] === "number" ? index : titles.indexOf(this.model.layers[index].site);
  }

  overview() {
    const most = Math.max(...this.model.layers.map((layer) => layer.heads));
    const head = element("tr", {}, [element("th"), ...[...Array(most).keys()].map((h) =>
      element("th", { scope: "col", textContent: String(h) }))]);
    const rows = this.model.layers.map((layer, index) => {
      const cells = [...Array(layer.heads).keys()].map((h) => {
        const canvas = element("canvas");
        const cell = element("button", { type: "button", onclick: () => choose({ layer: this.shared(index), head: h }) }, [canvas]);
        cell.setAttribute("aria-label", `${layer.site}, head ${h}`);
        this.cells.push({ layer, index, head: h, canvas, cell });
        return element("td", {}, [cell]);
      });
      return element("tr", {}, [element("th", { scope: "row", textContent: breakable(layer.site) }), ...cells]);
    });
    this.part(".overview").append(
      element("table", {}, [element("thead", {}, [head]), element("tbody", {}, rows)]));
  }

  charts() {
    const layers = this.model.layers;
    const parts = [
      ["entropy", "entropy, nats", (layer) => (layer.entropy.length ? layer.ceiling : null)],
      ["distance", "distance, as a fraction of the image’s sides", () => null],
    ];
    this.marks = [];
    for (const [name, title, ceiling] of parts) {
      if (!layers.some((layer) => layer[name].length)) continue;
      const width = 260, height = 120, left = 30, bottom = 16, top = 22;
      const x = (i) => left + (layers.length > 1 ? (i * (width - left - 8)) / (layers.length - 1) : 0);
      const all = models.flatMap((model) => model.layers); // one scale for all models
      const most = Math.max(...all.flatMap((layer) => [...layer[name], ceiling(layer) ?? 0])) || 1;
      const y = (number) => top + (1 - number / most) * (height - top - bottom);
      const means = layers.map((layer) =>
        layer[name].length ? layer[name].reduce((a, b) => a + b, 0) / layer[name].length : null);
      const line = (numbers) => "M" + numbers.flatMap((number, i) =>
        (number === null ? [] : [`${x(i).toFixed(1)} ${y(number).toFixed(1)}`])).join("L");
      const mark = drawn("line", { class: "now", y1: top - 4, y2: height - bottom });
      const texts = means.map((mean, i) => (mean === null ? "" : `${layers[i].site} ${mean.toPrecision(3)}`));
      const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
        "aria-label": `${title}, mean over heads by layer: ${texts.filter(Boolean).join("; ")}` });
      svg.append(
        drawn("text", { x: 0, y: 10 }, title),
        drawn("text", { x: left - 5, y: y(most) + 3, "text-anchor": "end" }, most.toPrecision(2)),
        drawn("text", { x: left - 5, y: y(0) + 3, "text-anchor": "end" }, "0"),
        drawn("line", { class: "axis", x1: left, x2: width - 8, y1: y(0), y2: y(0) }),
        drawn("text", { x: left, y: height - 3 }, "first layer"),
        drawn("text", { x: width - 8, y: height - 3, "text-anchor": "end" }, "last"),
        mark,
        ...layers.flatMap((layer, i) => layer[name].map((number) =>
          drawn("circle", { cx: x(i).toFixed(1), cy: y(number).toFixed(1), r: 2 }))),
        drawn("path", { class: "mean", d: line(means) }),
      );
      if (name === "entropy") svg.append(drawn("path", { class: "ceiling", d: line(layers.map(ceiling)) }));
      svg.addEventListener("click", ({ clientX }) => {
        const box = svg.getBoundingClientRect(), at = ((clientX - box.left) / box.width) * width;
        const far = layers.map((_, i) => Math.abs(x(i) - at));
        choose({ layer: this.shared(far.indexOf(Math.min(...far))) });
      });
      this.marks.push([mark, x]);
      this.part(".charts").append(svg);
    }
  }

  skipped() {
    const { skipped } = this.model;
    this.part(".skipped").hidden = skipped.length === 0;
    if (skipped.length === 0) return;
    const reasons = skipped.map(([site, why]) => element("li", { textContent: why.includes(site) ? why : `${site}: ${why}` }));
    this.part(".skipped").append(element("details", {}, [
      element("summary", { textContent: `${skipped.length} of the model’s sites not shown` }),
      element("ul", {}, reasons),
    ]));
  }

  show() {
    const layer = this.layer(), picture = this.model.masks[state.picture] ?? this.model.image;
    if (this.part("img").src !== picture) this.part("img").src = picture;
    for (const part of [".heat", ".chosen", ".scale"]) this.part(part).hidden = layer === null;
    for (const [button, query] of this.buttons) {
      button.setAttribute("aria-pressed", String(JSON.stringify(query) === JSON.stringify(state.query)));
    }
    for (const [mark, x] of this.marks) {
      for (const end of ["x1", "x2"]) mark.setAttribute(end, x(Math.max(0, this.index())));
      mark.setAttribute("visibility", layer === null ? "hidden" : "visible");
    }
    if (layer === null) {
      this.part(".summary").textContent = `${titles[state.layer]}: not a layer of this model.`;
      this.paintOverview(null, ALL);
      return;
    }
    const head = state.head < layer.heads ? state.head : ALL, known = layer.has(state.query);
    const attention = known ? layer.attention(state.query, head, state.direction) : { map: [], prefix: [], latents: [] };
    const map = attention.map.length ? attention.map : new Array(layer.rows * layer.columns).fill(0);
    paint(this.part(".heat"), map, layer.rows, layer.columns, (share) => state.shade * (0.35 + 0.65 * share));
    this.box(layer);
    const most = Math.max(...map.map(Math.abs));
    this.part(".most").textContent = known ? `0 to ${percent(most)}` : "";
    this.part(".summary").textContent = this.sentence(layer, head, attention, map, known);
    this.paintOverview(layer, head);
  }

  paintOverview(shown, head) {
    for (const { layer, canvas, cell, head: own } of this.cells) {
      const values = layer.has(state.query) ? layer.attention(state.query, own, state.direction).map : [];
      const map = values.length ? values : new Array(layer.rows * layer.columns).fill(0);
      paint(canvas, ...pooled(map, layer.rows, layer.columns), () => 1);
      cell.setAttribute("aria-pressed", String(layer === shown && (own === head || layer.heads === 1)));
    }
  }

  box(layer) {
    const box = this.part(".chosen");
    box.hidden = state.query.down === undefined;
    this.part(".picture").classList.toggle("pinned", state.pinned);
    if (box.hidden) return;
    const place = layer.place(state.query);
    Object.assign(box.style, {
      top: `${(100 * Math.floor(place / layer.columns)) / layer.rows}%`,
      left: `${(100 * (place % layer.columns)) / layer.columns}%`,
      height: `${100 / layer.rows}%`,
      width: `${100 / layer.columns}%`,
    });
  }

  sentence(layer, head, attention, map, known) {
    const where = `${layer.site}, ${head === ALL ? "mean of heads" : `head ${head}`}`;
    if (!known) return `${where}: not a token of this layer.`;
    const spot = (index) => `row ${Math.floor(index / layer.columns)}, column ${index % layer.columns}`;
    const { prefix, latent } = state.query;
    const who = prefix !== undefined ? `The ${prefix} token`
      : latent !== undefined ? `Latent ${latent}` : `The patch in ${spot(layer.place(state.query))}`;
    const best = map.reduce((top, number, i) => (Math.abs(number) > Math.abs(map[top]) ? i : top), 0);
    const parts = map[best] === 0 ? [`${who} ${state.direction === "to" ? "attends to no patch" : "gets attention from no patch"}`]
      : [`${who} ${state.direction === "to" ? "attends most to" : "gets most attention from"} ${spot(best)} (${percent(map[best])})`];
    attention.prefix.forEach((share, i) => parts.push(`${layer.prefix[i]} token ${percent(share)}`));
    if (attention.latents.length) {
      const order = [...attention.latents.keys()].sort((a, b) => attention.latents[b] - attention.latents[a]).slice(0, 3);
      parts.push(`${state.direction === "to" ? "through" : "attended to by"} latents ${order.map((i) => `${i} (${percent(attention.latents[i])})`).join(", ")}`);
    }
    const numbers = head === ALL ? [layer.entropy.reduce((a, b) => a + b, 0) / layer.entropy.length] : [layer.entropy[head]];
    if (layer.entropy.length) parts.push(`mean entropy of all rows ${numbers[0].toPrecision(3)} of ${layer.ceiling.toPrecision(3)} nats`);
    return `${where}: ${parts.join("; ")}.`;
  }
}

const roots = [...document.querySelectorAll(".model")];
const views = models.map((model, index) => new View(model, roots[index]));

function choose(change) {
  Object.assign(state, change);
  state.layer = Math.min(Math.max(state.layer, 0), titles.length - 1);
  const layers = views.map((view) => view.layer()).filter(Boolean), most = Math.max(...layers.map((layer) => layer.heads));
  if (state.head >= most) state.head = ALL;
  showControls(state, layers, most);
  for (const radio of document.querySelectorAll("[name=direction]")) radio.checked = radio.value === state.direction;
  views.forEach((view) => view.show());
}

// Masks over the image, of models that predict them.
const masks = [...new Set(models.flatMap((model) => Object.keys(model.masks)))];
field("picture").replaceChildren(new Option("image", ""), ...masks.map((name) => new Option(name, name)));
field("shown").hidden = masks.length === 0;

field("layer").max = String(titles.length - 1);
field("layer").addEventListener("input", (event) => choose({ layer: Number(event.target.value) }));
field("head").addEventListener("change", (event) => choose({ head: Number(event.target.value) }));
field("picture").addEventListener("change", (event) => choose({ picture: event.target.value }));
field("shade").addEventListener("input", (event) => choose({ shade: Number(event.target.value) / 100 }));
field("direction").addEventListener("change", (event) => choose({ direction: event.target.value }));
field("controls").addEventListener("submit", (event) => event.preventDefault());

const { opening } = data;
choose(opening ? { layer: views[opening.model].shared(opening.layer), head: opening.head, query: opening.query } : {});
