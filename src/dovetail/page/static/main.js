// Tabs, the choice of a graph, search; then the first graph is drawn.
const choice = document.getElementById("graph-choice");
const colourChoice = document.getElementById("colour");
const searchBox = document.getElementById("search");
const tabs = [...document.querySelectorAll("[role=tab]")];
const PANELS = { overview: showOverview, stages: showStages, memory: showMemory, kernels: showKernels };
let filled = new Set(); // panels that show the chosen graph
let found = [], foundAt = -1;

function openTab(tab) {
  for (const each of tabs) {
    const open = each === tab;
    each.setAttribute("aria-selected", open);
    each.tabIndex = open ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")).hidden = !open;
  }
  const name = tab.getAttribute("aria-controls");
  if (name in PANELS && !filled.has(name) && view.shown) {
    filled.add(name);
    PANELS[name](view.shown);
  }
  if (name === "graph" && view.cy) view.cy.resize();
}

function openGraph(g) {
  filled = new Set();
  searchBox.value = "";
  showFound([]);
  drawGraph(g, colourChoice.value);
  showNothing();
  openTab(tabs.find((tab) => tab.getAttribute("aria-selected") === "true") || tabs[0]);
}

function showFound(nodes) {
  found = nodes;
  foundAt = -1;
  document.getElementById("found").textContent = searchBox.value.trim() ? `${nodes.length} found` : "";
}

function nextFound(way) {
  if (!found.length) return;
  foundAt = (foundAt + way + found.length) % found.length;
  document.getElementById("found").textContent = `${foundAt + 1} of ${found.length}`;
  select(found[foundAt], true);
}

function showFacts() {
  document.getElementById("title").textContent = data.title;
  const all = graphs.reduce((sum, g) => sum + g.graph.calls.length, 0);
  const plans = graphs.flatMap((g) => g.graph.segments).map((s) => s.program && s.program.memory).filter(Boolean);
  const facts = [
    [all, isFile ? "instruction" : "call"],
    [totalOf("kernel"), "generated kernel"], [totalOf("library"), "library call"], [totalOf("host"), "host call"],
  ];
  if (plans.length) facts.push([bytes(plans.reduce((sum, p) => sum + p.peak, 0)), `arena, of ${bytes(plans.reduce((sum, p) => sum + p.sum, 0))}`]);
  const spent = report.compilations.reduce((sum, c) => sum + c.milliseconds, 0);
  if (spent) facts.push([`${spent.toFixed(0)} ms`, "to compile"]);
  if (report.graph_breaks.length) facts.push([report.graph_breaks.length, "graph break"]);
  replace(document.getElementById("facts"), facts.map(([number, noun]) =>
    element("span", {}, element("b", {}, number.toLocaleString("en")), ` ${noun}${typeof number === "number" && number !== 1 ? "s" : ""}`)));
}

tabs.forEach((tab) => tab.addEventListener("click", () => openTab(tab)));
document.getElementById("tabs").addEventListener("keydown", (event) => {
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key], at = tabs.indexOf(document.activeElement);
  if (!way || at < 0) return;
  const open = tabs.filter((tab) => !tab.hidden);
  const next = open[(open.indexOf(tabs[at]) + way + open.length) % open.length];
  openTab(next);
  next.focus();
});
choice.addEventListener("change", () => openGraph(graphs[choice.selectedIndex]));
colourChoice.addEventListener("change", () => recolour(colourChoice.value));
searchBox.addEventListener("input", () => showFound(search(searchBox.value)));
searchBox.addEventListener("keydown", (event) => {
  if (event.key === "Enter") nextFound(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") { searchBox.value = ""; showFound(search("")); canvas.focus(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, select")) return;
  event.preventDefault();
  openTab(tabs[0]);
  searchBox.focus();
});
document.getElementById("fit").addEventListener("click", () => view.cy.viewport(fitted()));
document.getElementById("readable").addEventListener("click", () => readable(view.selected));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (view.cy) recolour(colourChoice.value);
});

view.onSelect = showNode;
replace(choice, graphs.map((g) => element("option", {}, g.title)));
document.getElementById("tab-stages").hidden = isFile;
document.getElementById("which").hidden = graphs.length < 2;
showFacts();
openTab(tabs[0]);
if (graphs.length) {
  choice.selectedIndex = data.first;
  openGraph(graphs[data.first]);
} else {
  replace(panel, element("h2", {}, "Nothing was compiled"));
}
// For a browser's console, and for tests: the graph as Cytoscape has it, and when it could be used.
window.dovetail = { view, graphs, report, select, readyAt: 0 };
function ready() {
  window.dovetail.readyAt = performance.now();
  document.body.dataset.ready = "yes";
}
if (view.cy) view.cy.one("render", ready); // the first time that the graph is drawn
else ready();
