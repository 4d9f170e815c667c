"use strict";

/* Values of drawings: of the marked parts, and of the nearest epoch of a learning curve. */

const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
tip.hidden = true;
for (const title of document.querySelectorAll("main svg title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}

function curveText(svg, event) {
  const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
  const [left, right, first, last] = svg.dataset.x.split(" ").map(Number);
  const at = first + ((event.clientX - box.left) / box.width * view.width - left) / (right - left) * (last - first);
  const points = JSON.parse(svg.dataset.points);
  const point = points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a);
  const [epoch, mean, low, high, baseline] = point;
  const x = left + (epoch - first) / (last - first) * (right - left), cursor = svg.querySelector(".cursor");
  for (const name of ["x1", "x2"]) cursor.setAttribute(name, x);
  cursor.setAttribute("visibility", "visible");
  const range = low === high ? "" : ` (${low} to ${high})`;
  return `${svg.dataset.unit} ${epoch}: ${mean}${range}` + (baseline === null ? "" : `\nbaseline: ${baseline}`);
}

function point(event) {
  for (const cursor of document.querySelectorAll('.cursor[visibility="visible"]')) {
    cursor.setAttribute("visibility", "hidden");
  }
  const curve = event.target.closest?.("svg.curve"), marked = event.target.closest?.("[data-tip]");
  tip.hidden = !(curve || marked);
  if (tip.hidden) return;
  tip.textContent = curve ? curveText(curve, event) : marked.dataset.tip;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, room))}px`;
  tip.style.top = `${event.clientY + (event.clientY > 80 ? -14 - tip.offsetHeight : 18)}px`;
}

document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

/* Tables: a click on a header sorts; narrow screens show each row as a list of labeled values. */

const UNITS = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, "µs": 1e-6, ms: 1e-3, min: 60, h: 3600, GiB: 1024 };

function headers(table) {
  const grid = [];
  [...table.tHead.rows].forEach((row, y) => {
    let x = 0;
    for (const cell of row.cells) {
      while (grid[y]?.[x]) x++;
      for (let down = 0; down < cell.rowSpan; down++) {
        for (let right = 0; right < cell.colSpan; right++) (grid[y + down] ??= [])[x + right] = cell;
      }
      x += cell.colSpan;
    }
  });
  return grid;
}

function cellAt(row, column) {
  let x = 0;
  for (const cell of row.cells) if ((x += cell.colSpan) > column) return cell;
  return undefined;
}

function value(row, column) {
  const text = (cellAt(row, column)?.textContent ?? "").trim().replaceAll("\u2212", "-").replaceAll(",", "");
  const found = text.match(/^[<>]?([+-]?\d+(?:\.\d+)?)\s?(\S*)/);
  return found ? Number(found[1]) * (UNITS[found[2]] ?? 1) : text;
}

function compareValues(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b);
}

function sort(table, head, column) {
  const body = table.tBodies[0], before = head.getAttribute("aria-sort");
  const order = before === "ascending" ? "descending" : before === "descending" ? "none" : "ascending";
  table.rowsAsWritten ??= [...body.rows];
  for (const each of table.tHead.querySelectorAll("[aria-sort]")) each.removeAttribute("aria-sort");
  const rows = [...table.rowsAsWritten];
  if (order !== "none") {
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const missing = (found) => found === "" || found === "n/a" || found === "\u2013";
    rows.sort((a, b) => {
      const left = value(a, column), right = value(b, column);
      if (missing(left) || missing(right)) return missing(left) - missing(right);
      return sign * compareValues(left, right);
    });
  }
  table.classList.toggle("sorted", order !== "none");
  body.append(...rows);
}

function tableCsv(table, grid) {
  if (table.dataset.csv) return table.dataset.csv;
  const names = grid.at(-1).map((_, x) => [...new Set(grid.map((row) => text(row[x])))].join(" "));
  const rows = [...table.tBodies[0].rows].map((row) => grid.at(-1).map((_, x) => text(cellAt(row, x))));
  return csv([names, ...rows]);
}

const text = (cell) => (cell?.textContent ?? "").replace(/\s+/g, " ").trim();
const quoted = (cell) => /[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell ?? "");
const csv = (rows) => rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n";

for (const table of document.querySelectorAll("main table:not(.counts, .matrix)")) {
  if (!table.tHead) continue;
  const grid = headers(table);
  grid.at(-1).forEach((head, column) => {
    head.classList.add("sortable");
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(table, head, column));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(table, head, column); });
    const label = [...new Set(grid.map((row) => text(row[column])))].join(", ");
    for (const row of table.tBodies[0].rows) {
      const cell = cellAt(row, column);
      if (cell && !cell.dataset.label) cell.dataset.label = cell.colSpan > 1 ? "" : label;
    }
  });
  table.classList.add("stacked");
  const name = table.dataset.name ?? text(table.closest("section")?.querySelector("h2")).toLowerCase();
  table.caption?.append(" ", button("CSV", () => save(`${name}.csv`, "text/csv", tableCsv(table, grid))));
}

/* Downloads. */

function button(label, action) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.title = `Download as ${label}`;
  made.addEventListener("click", action);
  return made;
}

function save(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function svgText(svg) {
  const style = getComputedStyle(document.documentElement), copy = svg.cloneNode(true);
  const parts = [...copy.querySelectorAll("*")];
  [...svg.querySelectorAll("*")].forEach((part, index) => {
    if (getComputedStyle(part).display === "none") parts[index].remove();
  });
  copy.querySelector(".cursor")?.remove();
  const [, , width, height] = copy.getAttribute("viewBox").split(" ");
  const back = document.createElementNS(copy.namespaceURI, "rect");
  for (const [key, set] of Object.entries({ width, height, fill: "var(--surface)" })) back.setAttribute(key, set);
  copy.prepend(back);
  for (const [key, set] of Object.entries({ width, height, "font-family": "sans-serif" })) copy.setAttribute(key, set);
  const source = new XMLSerializer().serializeToString(copy);
  return source.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
}

for (const panel of document.querySelectorAll("main .panel:has(> svg)")) {
  const svg = panel.querySelector("svg");
  const name = text(panel.querySelector(".title")) || text(panel.closest("section")?.querySelector("h2"));
  panel.append(button("SVG", () => save(`${name}.svg`, "image/svg+xml", svgText(svg))));
}

for (const figure of document.querySelectorAll("figure[data-quantity]")) {
  figure.querySelector("figcaption").append(" ", button("CSV", () => {
    const rows = [["variant", "epoch", "mean", "low", "high", "baseline"]];
    for (const panel of figure.querySelectorAll(".panel")) {
      for (const each of JSON.parse(panel.querySelector("svg").dataset.points)) {
        rows.push([text(panel.querySelector(".name")), ...each]);
      }
    }
    save(`${figure.dataset.title}.csv`, "text/csv", csv(rows));
  }));
}
