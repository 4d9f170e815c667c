// Attention between the tokens of a text: a matrix per layer and head; over the image, if its positions are the tokens.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { layer: 0, head: ALL, row: 0, pinned: false };
const titles = merged(data.models.map((model) => model.layers.map((layer) => layer.site)));

class View {
  constructor(model, root) {
    Object.assign(this, { model, root, cells: [] });
    this.part("h2").textContent = model.name;
    this.part(".description").textContent = model.description;
    this.part(".target").hidden = model.target.length === 0;
    this.part(".source").hidden = model.picture !== null;
    this.part(".picture").hidden = model.picture === null;
    if (model.picture !== null) this.part(".picture img").src = model.picture;
    this.matrix = this.part(".matrix");
    this.matrix.addEventListener("keydown", (pressed) => this.press(pressed));
    this.overview();
    const { skipped } = model;
    this.part(".skipped").hidden = skipped.length === 0;
    this.part(".skipped").append(element("details", {}, [
      element("summary", { textContent: `${skipped.length} maps not shown` }),
      element("ul", {}, skipped.map(([site, why]) => element("li", { textContent: `${site}: ${why}` }))),
    ]));
  }

  part(selector) {
    return this.root.querySelector(selector);
  }

  layer() {
    const title = titles[state.layer];
    return this.model.layers[typeof title === "number" ? title : this.model.layers.findIndex((each) => each.site === title)] ?? null;
  }

  // The map (rows x columns) of a head, or the mean over heads.
  map(layer, head) {
    layer.decoded ??= decoded(layer.weights);
    const { numbers, shape: [heads, rows, columns] } = layer.decoded, size = rows * columns;
    if (head !== ALL) return [...numbers.subarray(head * size, (head + 1) * size)];
    return [...Array(size).keys()].map((i) => {
      let sum = 0;
      for (let h = 0; h < heads; h++) sum += numbers[h * size + i];
      return sum / heads;
    });
  }

  press(event) {
    const heads = field("head").options.length - 1;
    const keys = {
      "[": () => choose({ layer: state.layer - 1 }),
      "]": () => choose({ layer: state.layer + 1 }),
      ",": () => choose({ head: Math.max(ALL, state.head - 1) }),
      ".": () => choose({ head: Math.min(heads - 1, state.head + 1) }),
      ArrowUp: () => choose({ row: state.row - 1, pinned: true }),
      ArrowDown: () => choose({ row: state.row + 1, pinned: true }),
      Escape: () => choose({ pinned: false }),
    };
    if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  }

  overview() {
    const { layers } = this.model, most = Math.max(...layers.map((layer) => layer.weights.shape[0]));
    const count = (number) => [...Array(number).keys()];
    const head = element("tr", {}, [element("th"), ...count(most).map((h) => element("th", { scope: "col", textContent: String(h) }))]);
    const rows = layers.map((layer, index) => {
      const [heads, down, across] = layer.weights.shape;
      const cells = count(heads).map((h) => {
        const canvas = element("canvas"), place = typeof titles[0] === "number" ? index : titles.indexOf(layer.site);
        const cell = element("button", { type: "button", onclick: () => choose({ layer: place, head: h }) }, [canvas]);
        cell.setAttribute("aria-label", `${layer.site}, head ${h}`);
        paint(canvas, ...pooled(this.map(layer, h), down, across), () => 1);
        this.cells.push({ layer, head: h, cell });
        return element("td", {}, [cell]);
      });
      return element("tr", {}, [element("th", { scope: "row", textContent: breakable(layer.site) }), ...cells]);
    });
    this.part(".overview").append(element("table", {}, [element("thead", {}, [head]), element("tbody", {}, rows)]));
  }

  // Words, each shaded by its share of the largest; without shares, plain words.
  sentence(part, tokens, shares) {
    const most = Math.max(...(shares ?? []).map(Math.abs), 0);
    this.part(part).replaceChildren(...tokens.map((token, i) => {
      const word = element("span", { textContent: token });
      if (most) this.shade(word, Math.abs(shares[i]) / most);
      return word;
    }));
  }

  // The attention over the grid of the image, and the position of the row if it is one of the grid; null: none.
  overlay(own, place) {
    const [rows, columns] = this.model.grid, box = this.part(".chosen"), heat = this.part(".heat");
    heat.hidden = own === null;
    box.hidden = place === null;
    if (own !== null) paint(heat, own.slice(0, rows * columns), rows, columns, (share) => 0.6 * (0.35 + 0.65 * share));
    if (place === null) return;
    Object.assign(box.style, {
      top: `${(100 * Math.floor(place / columns)) / rows}%`,
      left: `${(100 * (place % columns)) / columns}%`,
      height: `${100 / rows}%`,
      width: `${100 / columns}%`,
    });
  }

  shade(cell, share) {
    const [red, green, blue] = color(share);
    cell.style.background = `rgb(${red}, ${green}, ${blue})`;
    cell.style.color = share > 0.55 ? "#000000" : "#ffffff";
  }

  show() {
    const layer = this.layer();
    for (const { layer: own, head, cell } of this.cells) {
      cell.setAttribute("aria-pressed", String(own === layer && (head === state.head || own.weights.shape[0] === 1)));
    }
    if (layer === null) {
      this.matrix.replaceChildren();
      this.sentence(".source", this.model.source);
      this.sentence(".target", this.model.target);
      this.overlay(null, null);
      this.part(".summary").textContent = `${titles[state.layer]}: not a layer of this model.`;
      return;
    }
    const [heads, rows, columns] = layer.weights.shape, head = state.head < heads ? state.head : ALL;
    const map = this.map(layer, head), most = Math.max(...map.map(Math.abs), 0) || 1;
    const queries = this.model[layer.rows], keys = this.model[layer.columns], chosen = Math.min(state.row, rows - 1);
    const own = map.slice(chosen * columns, (chosen + 1) * columns);
    const best = own.reduce((top, number, i) => (Math.abs(number) > Math.abs(own[top]) ? i : top), 0);
    if (this.drawn !== map.length + layer.site + head) this.draw(map, most, queries, keys);
    this.drawn = map.length + layer.site + head;
    this.matrix.querySelectorAll("tbody tr").forEach((line, i) => line.classList.toggle("chosen-row", i === chosen));
    this.matrix.querySelectorAll("thead th").forEach((line, i) => line.classList.toggle("chosen-column", i === best + 1));
    const seen = layer.columns === "inputs" ? null : own, pictured = this.model.picture !== null;
    this.sentence(".source", this.model.source, seen);
    this.overlay(pictured ? seen : null, pictured && layer.rows === "source" ? chosen : null);
    // the key i of a decoder is the input token i, which is the output's token i - 1
    this.sentence(".target", this.model.target, layer.columns === "inputs" ? own.slice(1).concat(0) : null);
    const where = `${layer.site}, ${head === ALL ? "mean of heads" : `head ${head}`}`;
    this.part(".summary").textContent =
      `${where}: ${layer.rows === "target" ? "the prediction of " : ""}“${queries[chosen]}” attends most to “${keys[best]}” (${percent(own[best])}).`;
  }

  draw(map, most, queries, keys) {
    const head = element("tr", {}, [element("th"), ...keys.map((key) =>
      element("th", { scope: "col" }, [element("span", { textContent: key })]))]);
    const lines = queries.map((query, row) => {
      const cells = keys.map((key, column) => {
        const number = map[row * keys.length + column];
        const cell = element("td", { title: `${query} → ${key}: ${percent(number)}` });
        this.shade(cell, Math.abs(number) / most);
        return cell;
      });
      const again = () => state.pinned && state.row === row;
      return element("tr", {
        onpointerenter: () => state.pinned || choose({ row }),
        onclick: () => choose({ row, pinned: !again() }),
      }, [element("th", { scope: "row", textContent: query }), ...cells]);
    });
    this.matrix.replaceChildren(element("table", {}, [element("thead", {}, [head]), element("tbody", {}, lines)]));
  }
}

const roots = [...document.querySelectorAll(".model")];
const views = data.models.map((model, index) => new View(model, roots[index]));

function choose(change) {
  Object.assign(state, change);
  state.layer = Math.min(Math.max(state.layer, 0), titles.length - 1);
  const layers = views.map((view) => view.layer()).filter(Boolean);
  state.row = Math.min(Math.max(state.row, 0), Math.max(...layers.map((layer) => layer.weights.shape[1])) - 1);
  const most = Math.max(...layers.map((layer) => layer.weights.shape[0]));
  if (state.head >= most) state.head = ALL;
  showControls(state, layers, most);
  views.forEach((view) => view.show());
}

field("layer").max = String(titles.length - 1);
field("layer").addEventListener("input", (event) => choose({ layer: Number(event.target.value) }));
field("head").addEventListener("change", (event) => choose({ head: Number(event.target.value) }));
field("controls").addEventListener("submit", (event) => event.preventDefault());

// open at the last cross-attention, or the first layer
const shown = data.models[0].layers, cross = shown.findLastIndex((layer) => layer.rows === "target" && layer.columns === "source");
choose({ layer: typeof titles[0] === "number" ? Math.max(cross, 0) : Math.max(titles.indexOf(shown[cross]?.site), 0) });
