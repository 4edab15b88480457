// The graph itself, drawn by Cytoscape.js at positions that were computed when the page was made.
const canvas = document.getElementById("canvas");
const view = { cy: null, shown: null, selected: null, onSelect: () => {} };

function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

const BACKENDS = ["kernel", "device", "library", "copy", "host", "none"]; // their colours, reused
const HEAT = ["#5b7fa6", "#4f9d8f", "#b08d2e", "#c46a1f", "#b3332a"]; // from the least to the most

function colouring(g, how) {
  const colour = colours();
  if (how === "backend") {
    const names = [...new Set(g.graph.calls.map((call) => call.backend))];
    const of = new Map(names.map((name, n) => [name, colour(BACKENDS[n % BACKENDS.length])]));
    return { legend: [...of], of: (node) => (node.call ? of.get(node.call.backend) : colour("input")) };
  }
  if (how === "time") {
    const measured = g.nodes.some((n) => measuredOf(n) !== null);
    const timeOf = (n) => (measured ? measuredOf(n) : n.call && n.call.estimated_seconds) || 0;
    const times = g.nodes.map(timeOf).filter((t) => t > 0);
    const least = Math.log(Math.min(...times)), most = Math.log(Math.max(...times));
    const step = (t) => Math.min(HEAT.length - 1, Math.floor(((Math.log(t) - least) / (most - least || 1)) * HEAT.length));
    const from = (n) => Math.exp(least + ((most - least) * n) / HEAT.length);
    const legend = times.length ? HEAT.map((c, n) => [`from ${seconds(from(n))}`, c]) : [];
    return {
      legend: [[measured ? "measured time of the kernel or call" : "estimated time", null], ...legend, ["none, or unknown", colour("none")]],
      of: (node) => {
        const time = timeOf(node);
        return time > 0 ? HEAT[step(time)] : colour(node.call ? "none" : "input");
      },
    };
  }
  const kinds = [...new Set(g.nodes.map((node) => node.kind))];
  return { legend: kinds.map((kind) => [KINDS[kind], colour(kind)]), of: (node) => colour(node.kind) };
}

function graphStyle(large) {
  const colour = colours();
  const edge = large ? { "curve-style": "haystack" } : { "curve-style": "straight", "target-arrow-shape": "triangle" };
  return [
    {
      selector: "node",
      style: {
        shape: "round-rectangle", width: 172, height: 40, "background-color": "data(colour)",
        label: "data(label)", color: "#ffffff", "font-size": 12, "text-valign": "center",
        "text-halign": "center", "text-wrap": "wrap", "text-max-width": 164,
        "min-zoomed-font-size": 6, "font-family": "system-ui, sans-serif",
      },
    },
    { selector: "node.end", style: { shape: "ellipse", height: 34 } },
    { selector: "node.found", style: { "border-width": 4, "border-color": colour("found") } },
    { selector: "node.beside", style: { "border-width": 3, "border-color": colour("accent"), "border-style": "dashed" } },
    { selector: "node:selected", style: { "border-width": 4, "border-color": colour("ink"), "border-style": "solid" } },
    {
      selector: "edge",
      style: {
        width: 1.2, "line-color": colour("edge"), "target-arrow-color": colour("edge"),
        "arrow-scale": 0.8, events: "no", ...edge,
      },
    },
    { selector: "edge.near", style: { width: 2.5, "line-color": colour("accent"), "target-arrow-color": colour("accent") } },
  ];
}

const isLarge = (g) => g.nodes.length > 1500; // from here on plain edges, and none while it moves

function short(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function drawGraph(g, how) {
  if (view.cy) view.cy.destroy();
  const paint = colouring(g, how);
  const elements = g.nodes.map((node) => ({
    group: "nodes",
    data: { id: `n${node.number}`, label: `${short(node.label, 26)}\n${short(node.desc, 27)}`, colour: paint.of(node) },
    position: { x: node.x, y: node.y },
    classes: node.call ? "" : "end",
  }));
  for (const node of g.nodes) {
    for (const source of new Set(node.sources)) {
      elements.push({ group: "edges", data: { source: `n${source.number}`, target: `n${node.number}` } });
    }
  }
  const large = isLarge(g);
  view.shown = g;
  view.selected = null;
  view.cy = cytoscape({
    container: canvas, elements, style: graphStyle(large), layout: { name: "preset", fit: false },
    minZoom: 0.002, maxZoom: 3, autoungrabify: true, boxSelectionEnabled: false, selectionType: "single",
    hideEdgesOnViewport: large, textureOnViewport: large, pixelRatio: large ? 1 : "auto",
  });
  view.cy.on("tap", "node", (event) => select(g.nodes[+event.target.id().slice(1)], false));
  showLegend(paint.legend);
  startView();
}

function recolour(how) {
  const paint = colouring(view.shown, how);
  view.cy.batch(() => view.shown.nodes.forEach((node) => view.cy.getElementById(`n${node.number}`).data("colour", paint.of(node))));
  view.cy.style(graphStyle(isLarge(view.shown)));
  showLegend(paint.legend);
}

function showLegend(entries) {
  replace(document.getElementById("legend"), entries.map(([text, colour]) => {
    if (colour === null) return element("span", {}, `${text}:`);
    const swatch = element("i", { class: "swatch" });
    swatch.style.backgroundColor = colour; // by the object model, which the policy allows
    return element("span", {}, swatch, text);
  }));
  view.cy.resize(); // the legend may have taken another line
}

// All of a small graph; the upper end of a large one, at a size that can be read.
function startView() {
  if (fitted().zoom < 0.55) readable(view.shown.nodes[0]);
  else view.cy.viewport(fitted());
}

// The view that shows every node. We know where they are, which spares Cytoscape asking each.
function fitted() {
  const xs = view.shown.nodes.map((node) => node.x), ys = view.shown.nodes.map((node) => node.y);
  const low = (places, margin) => places.reduce((a, b) => Math.min(a, b), Infinity) - margin;
  const high = (places, margin) => places.reduce((a, b) => Math.max(a, b), -Infinity) + margin;
  const [left, right, top, bottom] = [low(xs, 110), high(xs, 110), low(ys, 45), high(ys, 45)];
  const zoom = Math.min(1.2, canvas.clientWidth / (right - left), canvas.clientHeight / (bottom - top));
  const pan = (size, from, to) => (size - zoom * (from + to)) / 2;
  return { zoom, pan: { x: pan(canvas.clientWidth, left, right), y: pan(canvas.clientHeight, top, bottom) } };
}

function readable(node) {
  const at = node || view.shown.nodes[0];
  if (!at) return;
  const zoom = 0.85;
  view.cy.viewport({ zoom, pan: { x: canvas.clientWidth / 2 - at.x * zoom, y: 60 - at.y * zoom } });
}

function select(node, move) {
  view.selected = node;
  view.cy.batch(() => {
    view.cy.elements(":selected").unselect();
    view.cy.elements(".near, .beside").removeClass("near beside");
    const chosen = view.cy.getElementById(`n${node.number}`);
    chosen.select();
    chosen.connectedEdges().addClass("near");
    for (const other of kernelMates(node)) view.cy.getElementById(`n${other.number}`).addClass("beside");
  });
  if (move) {
    const zoom = Math.max(view.cy.zoom(), 0.6);
    view.cy.viewport({ zoom, pan: { x: canvas.clientWidth / 2 - node.x * zoom, y: canvas.clientHeight / 2 - node.y * zoom } });
  }
  view.onSelect(node);
}

// The other calls that the same instructions compute.
function kernelMates(node) {
  if (!node.call) return [];
  const names = new Set(node.steps.flatMap((step) => step.calls));
  names.delete(node.name);
  return [...names].map((name) => view.shown.byName.get(name)).filter(Boolean);
}

function searchable(node) {
  const call = node.call;
  const source = call && call.source ? `${call.source.file}:${call.source.line} ${call.source.code}` : "";
  const kernels = (node.steps || []).map((step) => step.name).join(" ");
  return `${node.name} ${node.label} ${call ? call.op : ""} ${call ? call.module : ""} ${source} ${kernels}`.toLowerCase();
}

function search(text) {
  const wanted = text.trim().toLowerCase();
  const found = wanted ? view.shown.nodes.filter((node) => searchable(node).includes(wanted)) : [];
  view.cy.batch(() => {
    view.cy.elements(".found").removeClass("found");
    found.forEach((node) => view.cy.getElementById(`n${node.number}`).addClass("found"));
  });
  return found;
}

const MOVES = {
  ArrowUp: (node) => node.sources[0],
  ArrowDown: (node) => node.readers[0],
  ArrowLeft: (node) => beside(node, -1),
  ArrowRight: (node) => beside(node, 1),
};

function beside(node, way) {
  const row = view.shown.nodes.filter((n) => n.y === node.y).sort((a, b) => a.x - b.x);
  return row[row.indexOf(node) + way];
}

canvas.addEventListener("keydown", (event) => {
  const centre = { x: canvas.clientWidth / 2, y: canvas.clientHeight / 2 };
  const zoom = (by) => view.cy.zoom({ level: view.cy.zoom() * by, renderedPosition: centre });
  if (event.key in MOVES) {
    const next = view.selected ? MOVES[event.key](view.selected) : view.shown.nodes[0];
    if (next) select(next, true);
  } else if (event.key === "+" || event.key === "=") zoom(1.25);
  else if (event.key === "-") zoom(0.8);
  else if (event.key === "0") view.cy.viewport(fitted());
  else if (event.key === "1") readable(view.selected);
  else return;
  event.preventDefault();
});
