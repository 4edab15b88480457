// What the page shows, read from the report that lies in it. Nothing here touches the document but
// to make elements: text is only ever set as text, whatever a name holds.
const data = JSON.parse(document.getElementById("data").textContent);
const report = data.report;
const isFile = !report.compilations.some((compilation) => compilation.stages.length); // a .dvt file

function element(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) made.append(child); // a string becomes a text node
  }
  return made;
}

function replace(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null));
}

const count = (number, noun) =>
  `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

function bytes(size) {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (size >= scale) return `${+(size / scale).toPrecision(3)} ${unit}`;
  }
  return `${size} B`;
}

function seconds(time) {
  if (time === null) return "unknown";
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (time >= scale) return `${+(time / scale).toPrecision(3)} ${unit}`;
  }
  return `${+(time / 1e-9).toPrecision(3)} ns`;
}

const KINDS = {
  kernel: "generated kernel",
  library: "library call",
  host: "host call",
  copy: "copy",
  device: "device",
  none: "no work of its own",
  elsewhere: "as its backend runs it",
  input: "input or output",
};

// Each functional graph of each compilation, with its nodes: inputs, calls, the output.
const graphs = report.compilations.flatMap((compilation) =>
  compilation.graphs.map((graph) => new Map([["compilation", compilation], ["graph", graph]]))
).map((held, position) => readGraph(held.get("compilation"), held.get("graph"), position));

function readGraph(compilation, graph, position) {
  const segments = new Map(graph.segments.map((segment) => [segment.name, segment]));
  const kernels = new Map(compilation.kernels.map((kernel) => [kernel.name, kernel]));
  const nodes = [];
  const add = (node) => nodes.push({ ...node, number: nodes.length });
  for (const given of graph.inputs) add({ type: "input", name: given.name, label: given.label, desc: given.desc, reads: [], kind: "input" });
  for (const call of graph.calls) {
    const segment = segments.get(call.segment);
    const program = segment ? segment.program : null;
    const steps = program ? call.instructions.map((n) => program.instructions[n]) : [];
    const kind = steps.length ? steps[0].kind : program ? "none" : "elsewhere";
    const label = call.op.replace(/^aten\./, "").replace(/\.default$/, "");
    add({ type: "call", name: call.name, label, desc: descriptor(call.text), reads: call.reads, kind, call, segment, steps });
  }
  if (graph.outputs.length) add({ type: "output", name: "output", label: "output", desc: "", reads: graph.outputs, kind: "input" });
  const byName = new Map(nodes.filter((node) => node.type !== "output").map((node) => [node.name, node]));
  const readers = new Map(nodes.map((node) => [node, []]));
  for (const node of nodes) {
    node.sources = node.reads.map((name) => byName.get(name)).filter(Boolean);
    for (const source of node.sources) readers.get(source).push(node);
  }
  nodes.forEach((node) => { node.readers = readers.get(node); });
  data.layouts[position].forEach(([x, y], n) => { nodes[n].x = x; nodes[n].y = y; });
  const title = report.compilations.length > 1 ? `${compilation.number}: ${graph.kind}` : graph.kind;
  return { title, compilation, graph, nodes, byName, segments, kernels, position };
}

function descriptor(text) {
  const found = /^%[^:]*: (.*?)(?: strides \[[^\]]*\])?(?: on [\w:.-]+)? = /.exec(text);
  return found ? found[1] : "";
}

// What a node's instructions took, those of other calls too where a kernel computes several.
function measuredOf(node) {
  const times = (node.steps || []).map((step) => step.measured_seconds).filter((time) => time !== null);
  return times.length ? times.reduce((a, b) => a + b) : null;
}

function totalOf(kind) {
  return graphs.reduce((sum, g) => sum + (g.graph.counts ? g.graph.counts[kind] || 0 : 0), 0);
}
