// The other views: overview, stages with what passes changed, memory, kernels.
const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function table(head, body, numbers) {
  const cell = (tag, value, n) => element(tag, numbers.includes(n) ? { class: "number" } : {}, value);
  return element("table", {},
    element("thead", {}, element("tr", {}, head.map((value, n) => cell("th", value, n)))),
    element("tbody", {}, body.map((row) => element("tr", {}, row.map((value, n) => cell("td", value, n))))));
}

// ---- overview ----------------------------------------------------------------------------------

function showOverview(g) {
  const { graph, compilation } = g;
  const counts = graph.counts || {};
  const steps = graph.segments.flatMap((segment) => (segment.program ? segment.program.instructions : []));
  const timeOf = (of) => steps.filter(of).reduce((sum, step) => sum + (step.measured_seconds || 0), 0);
  const measured = timeOf(() => true);
  const share = (time) => (measured && time ? `${seconds(time)}, ${Math.round((100 * time) / measured)} %` : "");
  const kinds = Object.keys(counts).map((kind) => [KINDS[kind], counts[kind].toLocaleString("en"), share(timeOf((step) => step.kind === kind))]);
  const breaks = report.graph_breaks.map((each) => element("li", {}, each.reason,
    each.source ? element("pre", { class: "wrap" }, `${each.source.file}:${each.source.line}\n${each.source.code}`) : null));
  const notes = compilation.notes.length ? element("ul", {}, compilation.notes.map((note) => element("li", {}, note))) : element("p", {}, "none");
  const heading = isFile ? `${graph.kind}: ${count(graph.calls.length, "instruction")}` : `${graph.kind} graph: ${count(graph.calls.length, "call")} in ${count(graph.segments.length, "segment")}`;
  const ofCompilation = () => [
    element("h3", {}, "refusals"), refusals(graph),
    element("h3", {}, "graph breaks"), breaks.length ? element("ul", {}, breaks) : element("p", {}, "none: the model is one graph"),
    element("h3", {}, "copies between memories, each run"),
    graph.copies.length ? table(["from", "to", "tensors", "bytes"], graph.copies.map((c) => [c.from, c.to, String(c.count), bytes(c.bytes)]), [2, 3]) : element("p", {}, "none"),
    element("h3", {}, "cache"), cacheTable(compilation),
  ];
  replace(document.getElementById("overview"),
    element("h2", {}, heading),
    element("h3", {}, "what one run consists of"), kinds.length ? table(["work", "times", measured ? "measured" : ""], kinds, [1, 2]) : element("p", {}, "not known"),
    element("h3", {}, isFile ? "what it takes and holds" : "segments"), segmentTable(graph),
    isFile ? null : ofCompilation(),
    element("h3", {}, "notes"), notes,
  );
}

function segmentTable(graph) {
  const body = graph.segments.map((s) => [
    s.name, s.backend, String(Object.values(s.ops).reduce((a, b) => a + b, 0)),
    s.program ? String(s.program.instructions.length) : "unknown",
    `${s.inputs} (${bytes(s.bytes_in)})`, `${s.outputs} (${bytes(s.bytes_out)})`, `${s.kept} (${bytes(s.bytes_kept)})`,
    String(s.reformats), seconds(s.estimated_seconds), s.measured ? `${seconds(s.measured.least_seconds)} (${s.measured.calls}x)` : "not measured",
  ]);
  return table(["segment", "backend", "calls", "instructions", "in", "out", "kept", "layout changes", "estimated", "measured"], body, [2, 3, 4, 5, 6, 7, 8, 9]);
}

function refusals(graph) {
  const times = new Map();
  for (const call of graph.calls) {
    for (const answer of call.answers.filter((a) => !a.takes)) {
      const key = JSON.stringify([call.op, answer.backend, answer.reason]);
      times.set(key, (times.get(key) || 0) + 1);
    }
  }
  if (!times.size) return element("p", {}, "none: every call runs on the first backend of the list");
  return table(["operator", "times", "refused by", "because"], [...times].map(([key, n]) => {
    const [op, backend, reason] = JSON.parse(key);
    return [op, String(n), backend, reason];
  }), [1]);
}

function cacheTable(compilation) {
  if (!compilation.cache.length) return element("p", {}, "not asked");
  return table(["graph", "answer", "why"], compilation.cache.map((found) => [found.graph, found.state,
    [found.reason, found.nearest.length ? `the nearest entry differs in ${found.nearest.join(", ")}` : "", found.key ? `key ${found.key.slice(0, 12)}` : ""].filter(Boolean).join("; ")]), []);
}

// ---- stages ------------------------------------------------------------------------------------

function showStages(g) {
  const { compilation } = g;
  const stages = compilation.stages, total = stages.reduce((sum, s) => sum + s.milliseconds, 0) || 1;
  const right = element("div", { id: "changes" }, element("p", { class: "quiet" }, "Choose a pass that changed the graph to see it before and after."));
  const width = 200;
  let start = 0;
  const body = stages.map((stage, position) => {
    const bar = shape("svg", { class: "when", width, height: 14, role: "img", "aria-label": `${stage.milliseconds.toFixed(2)} ms` });
    const from = (start / total) * width, long = Math.max(1, (stage.milliseconds / total) * width);
    bar.append(shape("rect", { class: stage.changed ? "bar changed" : "bar", x: from.toFixed(2), y: 2, width: long.toFixed(2), height: 10 }));
    start += stage.milliseconds;
    const name = stage.changed && textOf(stage.after) ? element("button", { class: "link", "data-stage": position, onclick: () => showChange(stage, right) }, stage.name) : stage.name;
    return [name, stage.graph, stage.milliseconds.toFixed(2), bar];
  });
  replace(document.getElementById("stages"), element("div", { class: "two" },
    element("div", {},
      element("h2", {}, `${total.toFixed(1)} ms in ${count(stages.length, "stage")}`),
      table(["stage", "graph", "ms", "when"], body, [2]),
      element("p", { class: "quiet" }, "Stages that changed the graph are drawn in the other colour; their names show what changed.")),
    right));
  const first = stages.find((stage) => stage.changed && textOf(stage.after));
  if (first) showChange(first, right);
}

const textOf = (number) => data.texts[number];

function showChange(stage, into) {
  const [left, right] = differences(textOf(stage.before).split("\n"), textOf(stage.after).split("\n"));
  replace(into,
    element("h2", {}, `${stage.name}: the ${stage.graph} graph before and after`),
    element("div", { class: "diff" }, element("pre", {}, left), element("pre", {}, right)));
}

// Lines that are only on one side, in their order, between three lines of what both sides share.
function differences(before, after) {
  const left = [], right = [];
  const line = (text, kind) => element("span", kind ? { class: kind } : {}, text);
  let alike = [];
  const flush = (last) => {
    const keep = (texts) => texts.forEach((text) => { left.push(line(text)); right.push(line(text)); });
    const first = left.length === 0;
    if (alike.length <= 7) keep(alike);
    else {
      if (!first) keep(alike.slice(0, 3));
      const hidden = alike.length - (first ? 0 : 3) - (last ? 0 : 3);
      for (const side of [left, right]) side.push(line(`… ${count(hidden, "line")} alike`, "gap"));
      if (!last) keep(alike.slice(-3));
    }
    alike = [];
  };
  let removed = [], added = []; // what stands between two lines that both sides have: side by side
  const flushChange = () => {
    for (let n = 0; n < Math.max(removed.length, added.length); n++) {
      left.push(n < removed.length ? line(removed[n], "removed") : line(""));
      right.push(n < added.length ? line(added[n], "added") : line(""));
    }
    removed = [], added = [];
  };
  for (const [a, b] of pairs(before, after)) {
    if (a !== null && b !== null) {
      flushChange();
      alike.push(a);
      continue;
    }
    if (alike.length) flush(false);
    if (a !== null) removed.push(a);
    if (b !== null) added.push(b);
  }
  flushChange();
  flush(true);
  return [left, right];
}

// The longest common subsequence where texts are short; else lines that both have, in order.
function* pairs(before, after) {
  let start = 0, end = 0;
  while (start < Math.min(before.length, after.length) && before[start] === after[start]) yield [before[start], after[start++]];
  while (end < Math.min(before.length, after.length) - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end++;
  const a = before.slice(start, before.length - end), b = after.slice(start, after.length - end);
  yield* a.length * b.length <= 4e6 ? longest(a, b) : greedy(a, b);
  for (let n = end; n > 0; n--) yield [before[before.length - n], after[after.length - n]];
}

function* longest(a, b) {
  const width = b.length + 1, best = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i * width + j] = a[i] === b[j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) yield [a[i++], b[j++]];
    else if (j >= b.length || (i < a.length && best[(i + 1) * width + j] >= best[i * width + j + 1])) yield [a[i++], null];
    else yield [null, b[j++]];
  }
}

function* greedy(a, b) {
  const places = new Map(b.map((text, n) => [text, n]));
  let j = 0;
  for (const text of a) {
    const at = places.get(text);
    if (at === undefined || at < j) { yield [text, null]; continue; }
    while (j < at) yield [null, b[j++]];
    yield [text, b[j++]];
  }
  while (j < b.length) yield [null, b[j++]];
}

// ---- memory ------------------------------------------------------------------------------------

function showMemory(g) {
  const planned = g.graph.segments.filter((segment) => segment.program && segment.program.memory);
  const parts = planned.map((segment) => memoryPart(segment.name, segment.program));
  replace(document.getElementById("memory"), parts.length ? parts : element("p", {}, "No segment of this graph has a memory plan that can be read."));
}

function memoryPart(name, program) {
  const { peak, sum, bound, padding, buffers } = program.memory;
  const padded = padding ? [["padding", padding.toLocaleString("en"), "of the sum: halos, and what fills the last blocks of packed tensors"]] : [];
  const saved = sum ? `, ${Math.round(100 * (1 - peak / sum))} % less than the sum` : "";
  const about = element("p", { class: "quiet" }, "Each rectangle is a temporary: as wide as the instructions from its first to its last use, as high as its bytes, where it lies in the arena.");
  return element("div", {},
    element("h2", {}, `${name}: arena ${bytes(peak)} at its peak${saved}`),
    table(["", "bytes", ""], [["peak", peak.toLocaleString("en"), "what the arena takes"], ["sum", sum.toLocaleString("en"), `of ${count(buffers.length, "temporary buffer")} without sharing`], ["bound", bound.toLocaleString("en"), "what is alive at once: no plan can take less"], ...padded], [1]),
    buffers.length ? [about, memoryPicture(program)] : element("p", {}, "It needs no temporary memory."));
}

function memoryPicture(program) {
  const { peak, buffers } = program.memory;
  const width = 1180, height = 360, left = 70, top = 10, bottom = 24;
  const steps = Math.max(1, program.instructions.length), high = Math.max(1, peak);
  const x = (n) => left + ((width - left - 10) * n) / steps;
  const y = (b) => top + (height - top - bottom) * (1 - b / high);
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `memory over ${steps} instructions, ${peak} bytes at its peak` });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(shape("line", { x1: left, x2: width - 10, y1: y(high * part), y2: y(high * part) }));
    picture.append(shape("text", { x: left - 6, y: y(high * part) + 4, "text-anchor": "end" }, bytes(Math.round(high * part))));
  }
  const colour = colours(), fills = ["kernel", "device", "library", "copy"].map(colour);
  buffers.forEach((buffer, n) => {
    const box = shape("rect", {
      class: "buffer", fill: fills[n % fills.length], x: x(buffer.first).toFixed(2), y: y(buffer.offset + buffer.bytes).toFixed(2),
      width: Math.max(1, x(buffer.last + 1) - x(buffer.first)).toFixed(2), height: Math.max(1, y(buffer.offset) - y(buffer.offset + buffer.bytes)).toFixed(2),
    });
    box.append(shape("title", {}, `${buffer.name}: ${buffer.bytes.toLocaleString("en")} bytes at ${buffer.offset.toLocaleString("en")}${buffer.padding ? `, ${buffer.padding.toLocaleString("en")} of them padding` : ""}, instructions ${buffer.first} to ${buffer.last}`));
    picture.append(box);
  });
  picture.append(shape("text", { x: left, y: height - 6 }, "instruction 0"));
  picture.append(shape("text", { x: width - 10, y: height - 6, "text-anchor": "end" }, `${steps - 1}`));
  return picture;
}

// ---- what instructions took ---------------------------------------------------------------------

const COSTS = ["took", "GB/s", "Gop/s", "of limit"];
const speed = (amount, time) => `${+(amount / time / 1e9).toPrecision(3)}`;

// Instructions of one name together; empty where nobody measured or nobody knows.
function costCells(steps) {
  const total = (of) => steps.reduce((sum, step) => sum + of(step), 0);
  const time = total((step) => step.measured_seconds || 0);
  if (!time) return ["", "", "", ""];
  const known = (key) => (steps.every((step) => step[key] !== null) ? speed(total((step) => step[key]), time) : "");
  const placed = steps.every((step) => step.roofline);
  const share = placed ? total((step) => step.roofline.share * step.measured_seconds) / time : 0;
  const longest = steps.reduce((a, b) => (b.measured_seconds > a.measured_seconds ? b : a));
  return [seconds(time), known("bytes"), known("operations"), placed ? `${Math.round(100 * share)} % ${longest.roofline.bound}` : ""];
}

function limitsText() {
  const found = report.limits;
  if (!found) return null;
  return element("p", { class: "quiet" }, `Limits measured on that machine with ${count(found.threads, "thread")}: ${speed(found.bytes_per_second, 1)} GB/s copied, ${speed(found.operations_per_second, 1)} Gop/s multiplied and added. A share above 100 % had its data in a cache.`);
}

// ---- kernels -----------------------------------------------------------------------------------

function showKernels(g) {
  const kernels = [...g.kernels.values()];
  const used = new Map();
  for (const segment of g.graph.segments) {
    for (const step of segment.program ? segment.program.instructions : []) {
      used.set(step.name, [...(used.get(step.name) || []), step]);
    }
  }
  const cost = (name) => costCells(used.get(name));
  const right = element("div", { id: "code" });
  const choose = (kernel) => replace(right, element("h2", {}, kernel.name), kernelTexts(kernel, true));
  const mine = kernels.filter((kernel) => used.has(kernel.name));
  const body = mine.map((kernel) => [
    element("button", { class: "link", onclick: () => choose(kernel) }, kernel.name.replace(/^generated\./, "")),
    String(used.get(kernel.name).length), ...cost(kernel.name), String(lines(kernel.ir)),
  ]);
  const others = [...used].filter(([name]) => !g.kernels.has(name)).map(([name, steps]) => [name, String(steps.length), ...cost(name)]);
  replace(document.getElementById("kernels"), element("div", { class: "two" }, element("div", {},
    element("h2", {}, count(mine.length, "generated kernel")), mine.length ? table(["kernel", "runs", ...COSTS, "lines of IR"], body, [1, 2, 3, 4, 5, 6]) : null,
    element("h3", {}, "others: libraries, PyTorch, copies"), others.length ? table(["what", "times", ...COSTS], others, [1, 2, 3, 4, 5]) : element("p", {}, "none"), limitsText()), right));
  if (mine.length) choose(mine[0]);
}
