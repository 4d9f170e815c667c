"use strict";

// Decode signed bytes b as sign(b) (b / 127)^2 largest.
function decoded({ bytes, largest, shape }) {
  const text = atob(bytes);
  const numbers = new Float32Array(text.length);
  for (let i = 0; i < text.length; i++) {
    const share = ((text.charCodeAt(i) << 24) >> 24) / 127;
    numbers[i] = Math.sign(share) * share * share * largest;
  }
  return { numbers, shape };
}

const ALL = -1; // index of the mean over heads

// --- drawing ---------------------------------------------------------------------------------------------------------

// viridis: perceptually uniform, also for color-blind readers
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function color(share) {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const index = Math.min(Math.floor(place), RAMP.length - 2);
  return RAMP[index].map((low, i) => Math.round(low + (place - index) * (RAMP[index + 1][i] - low)));
}

function paint(canvas, map, rows, columns, opacity) {
  const most = Math.max(...map.map(Math.abs), 0);
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  map.forEach((number, i) => {
    const share = most ? Math.abs(number) / most : 0;
    image.data.set([...color(share), Math.round(255 * opacity(share))], 4 * i);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const SMALL = 36; // pixels of a side of the smallest thumbnail

// Max-pool a map that is finer than its thumbnail.
function pooled(map, rows, columns) {
  const step = Math.ceil(Math.max(rows, columns) / SMALL), across = Math.ceil(columns / step), down = Math.ceil(rows / step);
  const most = new Array(down * across).fill(0);
  map.forEach((number, i) => {
    const place = Math.floor(Math.floor(i / columns) / step) * across + Math.floor((i % columns) / step);
    most[place] = Math.max(most[place], Math.abs(number));
  });
  return [most, down, across];
}

const percent = (share) => `${Number((100 * share).toPrecision(2))}%`;

// Allow line breaks at the dots of a site's path.
const breakable = (path) => path.replace(/[._]/g, "$&\u200b");

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function drawn(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// The layers of all models, each once; a layer of one model only follows its predecessor. Models that share no layer are
// aligned at their first layers, by number.
function merged([first, ...others]) {
  const all = [...first];
  for (const other of others) {
    if (!other.some((title) => first.includes(title))) return [...Array(Math.max(first.length, other.length)).keys()];
    other.forEach((title, i) => {
      if (!all.includes(title)) all.splice(i ? all.indexOf(other[i - 1]) + 1 : 0, 0, title);
    });
  }
  return all;
}

const field = (id) => document.getElementById(id);

// Set the controls of layer and head; `layers`: the selected layer of each model, `most`: their largest number of heads.
function showControls(state, layers, most) {
  const heads = field("head");
  if (heads.options.length !== most + 1) {
    heads.replaceChildren(new Option("mean of all", ALL), ...[...Array(most).keys()].map((h) => new Option(String(h), h)));
  }
  heads.value = String(state.head);
  field("layer").value = String(state.layer);
  field("layer-name").textContent = [...new Set(layers.map((layer) => breakable(layer.site)))].join(" | ");
}
