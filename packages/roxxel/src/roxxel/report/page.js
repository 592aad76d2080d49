// Draws the charts with Plotly, from the values in the page.
const drawn = JSON.parse(document.getElementById("numbers").textContent);
const figures = new Map([...document.querySelectorAll("figure")].map((f) => [f.id, f]));
const form = document.getElementById("axes");
const whole = document.getElementById("whole");
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");

// All charts share what is shown: the axis, the zoomed part of it, and what is hidden.
const shown = {axis: "step", range: null, hidden: new Set()};
const stale = new Set(figures.keys());  // charts that do not show this yet
const inView = new Set();
let isMirroring = false;  // whether a chart repeats what happens in another one

const UNITS = [["days", 86400], ["hours", 3600], ["minutes", 60], ["seconds", 1]];
const longest = Math.max(...drawn.clocks.map((clock) => clock.time.at(-1) ?? 0));
const [unit, unitSeconds] = UNITS.find(([, size]) => longest >= 2 * size) ?? UNITS[3];
const NAMES = {step: "step", tokens: "tokens", time: `training time in ${unit}`};

// Return the place of a step on the chosen axis, between two points of a run's clock.
function place(step, index = 0) {
  const clock = drawn.clocks[index], steps = clock.step, values = clock[shown.axis];
  if (shown.axis === "step") return step;
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  const width = steps[high] - steps[low];
  const share = width > 0 ? Math.min(1, Math.max(0, (step - steps[low]) / width)) : 0;
  const value = values[low] + share * (values[high] - values[low]);
  return shown.axis === "time" ? value / unitSeconds : Math.round(value);
}

function wholeRange() {
  const ends = drawn.clocks.flatMap((clock, i) => [
    place(clock.step[0], i), place(clock.step.at(-1), i)]);
  for (const {lines} of Object.values(drawn.charts))
    for (const {x, clock} of lines) ends.push(place(x[0], clock), place(x.at(-1), clock));
  const low = ends.reduce((a, b) => Math.min(a, b)), high = ends.reduce((a, b) => Math.max(a, b));
  return [low, high > low ? high : low + 1];
}

// Plotly reads a text as HTML; show the characters of a name instead.
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

function valueFormat(chart) {
  return chart.share ? ".4~p" : ",.5~r";
}

function traces(chart, color) {
  const visible = (of) => (shown.hidden.has(of) ? "legendonly" : true);
  const made = chart.lines.map((line) => {
    const paint = color(`c${line.color % 8}`);
    const finite = line.y.filter((y) => y !== null).length;
    const trace = {
      type: "scatter", name: plain(line.name), legendgroup: line.of, meta: line.of,
      x: line.x.map((step) => place(step, line.clock)), y: line.y,
      mode: line.dots || finite < 2 ? "lines+markers" : "lines",
      line: {color: paint, width: line.faint ? 1 : 2}, marker: {color: paint, size: 6},
      visible: visible(line.of),
      hovertemplate: `%{y:${valueFormat(chart)}}`,
    };
    if (chart.stack) Object.assign(trace, {stackgroup: "all", fillcolor: paint, line: {width: 0}});
    return trace;
  });
  if (chart.spots.length) made.push({
    type: "scatter", mode: "markers", name: "spike", meta: "spike", visible: visible("spike"),
    x: chart.spots.map(([step]) => place(step)), y: chart.spots.map(([, y]) => y),
    text: chart.spots.map(([, , words]) => plain(words)), hovertemplate: "%{text}",
    marker: {symbol: "circle-open", size: 12, color: color("bad"), line: {width: 2}},
  });
  if (drawn.evaluations.length) made.push({  // a row of marks at the bottom
    type: "scatter", mode: "markers", name: "evaluation", meta: "evaluation",
    visible: visible("evaluation"), yaxis: "y2", hoverinfo: "skip",
    x: drawn.evaluations.map((step) => place(step)), y: drawn.evaluations.map(() => 0),
    marker: {symbol: "triangle-up", size: 7, color: color("mark")},
  });
  return made;
}

// Return the range of the values that the zoomed part shows; undefined for all of them.
function fitted(chart) {
  if (!shown.range || chart.stack) return undefined;
  let low = Infinity, high = -Infinity;
  for (const line of chart.lines) {
    if (shown.hidden.has(line.of)) continue;
    line.x.forEach((step, i) => {
      const x = place(step, line.clock), y = line.y[i];
      if (y === null || x < shown.range[0] || x > shown.range[1]) return;
      low = Math.min(low, y);
      high = Math.max(high, y);
    });
  }
  if (low > high) return undefined;
  if (chart.axis === "log") [low, high] = [Math.log10(low), Math.log10(high)];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

function phaseMarks(range, width, color) {
  const starts = drawn.phases.map(([step]) => place(step));
  const shapes = [], annotations = [];
  drawn.phases.forEach(([, labels], i) => {
    const start = starts[i], stop = Math.min(starts[i + 1] ?? range[1], range[1]);
    if (stop < range[0] || start > range[1]) return;
    if (start > range[0]) shapes.push({
      type: "line", x0: start, x1: start, yref: "paper", y0: 0, y1: 1,
      line: {color: color("mark"), width: 1, dash: "dash"},
    });
    const from = Math.max(start, range[0]);
    const room = (stop - from) / (range[1] - range[0]) * width;
    const text = labels.find((label) => label.length * 6.4 + 8 <= room);
    if (text) annotations.push({
      x: from, yref: "paper", y: 1, text: plain(text), showarrow: false,
      xanchor: "left", yanchor: "bottom", font: {size: 11, color: color("quiet")},
    });
  });
  return {shapes, annotations};
}

function layout(chart, width, color) {
  const range = shown.range ?? wholeRange();
  const grid = {gridcolor: color("grid"), linecolor: color("grid"), zeroline: false};
  const greatest = chart.lines.reduce((most, {y}) =>
    y.reduce((a, b) => Math.max(a, Math.abs(b ?? 0)), most), 0);
  const values = {
    ...grid, type: chart.axis === "log" ? "log" : "linear", automargin: true,
    rangemode: chart.axis === "zero" ? "tozero" : "normal", nticks: 6,
    exponentformat: greatest >= 1000 ? "SI" : "power",
  };
  if (chart.share) values.tickformat = ".3~p";
  const y = fitted(chart);
  if (y) Object.assign(values, {range: y, autorange: false});
  const numLines = chart.lines.length + chart.spots.length;
  return {
    ...phaseMarks(range, width - 70, color),
    // The buttons are above the labels of the phases.
    margin: {l: 48, r: 12, t: 46, b: 40}, autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: "system-ui, sans-serif", size: 12, color: color("quiet")},
    xaxis: {
      ...grid, range, autorange: false, exponentformat: "SI", nticks: width > 500 ? 9 : 5,
      title: {text: NAMES[shown.axis], standoff: 6, font: {size: 12}},
      spikethickness: 1, spikedash: "solid", spikecolor: color("mark"),
      unifiedhovertitle: {
        text: `${NAMES[shown.axis]} %{x:${shown.axis === "time" ? ".4~r" : ",d"}}`,
      },
    },
    yaxis: values,
    yaxis2: {overlaying: "y", range: [0, 40], visible: false, fixedrange: true},
    showlegend: numLines > 1 || chart.stack,
    legend: {orientation: "h", x: 0, xanchor: "left", y: -0.16, yanchor: "top"},
    hovermode: "x unified", dragmode: touch.matches ? false : "zoom",
    hoverlabel: {bgcolor: color("card"), bordercolor: color("grid"), namelength: -1,
      font: {color: color("text")}},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: color("quiet"), activecolor: color("text")},
  };
}

// Points over an axis of their own: each has its text, and they zoom alone.
function cloud({name, color: index, x, y, words}, color) {
  return {
    type: "scatter", mode: "markers", name: plain(name), x, y,
    text: words.map(plain), hovertemplate: "%{text}<extra></extra>",
    marker: {color: color(`c${index % 8}`), size: 8, opacity: 0.8},
  };
}

function plane({axes, clouds, share, diagonal}, color) {
  const grid = {gridcolor: color("grid"), linecolor: color("grid"), zeroline: false,
    automargin: true, nticks: 6};
  const title = (text) => ({text: plain(text), standoff: 6, font: {size: 12}});
  const all = clouds.flatMap(({x, y}) => [...x, ...y]);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  return {
    margin: {l: 48, r: 12, t: 46, b: 40}, autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: "system-ui, sans-serif", size: 12, color: color("quiet")},
    xaxis: {...grid, title: title(axes[0]), ...(share ? {tickformat: ".0%"} : {})},
    yaxis: {...grid, title: title(axes[1])},
    shapes: diagonal ? [{type: "line", x0: low, y0: low, x1: high, y1: high,
      line: {color: color("mark"), width: 1, dash: "dash"}}] : [],
    showlegend: clouds.length > 1,
    legend: {orientation: "h", x: 0, xanchor: "left", y: -0.24, yanchor: "top"},
    hovermode: "closest", dragmode: touch.matches ? false : "zoom",
    hoverlabel: {bgcolor: color("card"), bordercolor: color("grid"),
      font: {color: color("text")}},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: color("quiet"), activecolor: color("text")},
  };
}

const CONFIG = {
  responsive: true, displaylogo: false, doubleClick: false,
  displayModeBar: touch.matches ? true : "hover",
  modeBarButtons: [["zoomIn2d", "zoomOut2d", "toImage"]],
};

function draw(id) {
  const box = figures.get(id).querySelector(".plot"), chart = drawn.charts[id];
  const isNew = !box.data, color = theme();
  stale.delete(id);
  if (!chart) {
    const {clouds} = drawn.scatters[id], points = clouds.map((each) => cloud(each, color));
    Plotly.react(box, points, plane(drawn.scatters[id], color), {...CONFIG, doubleClick: "reset"});
    return;
  }
  Plotly.react(box, traces(chart, color), layout(chart, box.clientWidth, color), CONFIG);
  if (isNew) listen(box, id);
}

function update(except = null) {
  for (const id of figures.keys()) if (id !== except) stale.add(id);
  for (const id of inView) if (stale.has(id)) draw(id);
  if (whole) whole.hidden = shown.range === null;
}

function zoom(range, except = null) {
  shown.range = range;
  update(except);
}

function listen(box, id) {
  box.on("plotly_relayout", (change) => {
    const range = change["xaxis.range"] ??
      ("xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
    if (!range) return;
    // A chart in which the user chose a range of values keeps it.
    zoom(range.map(Number), "yaxis.range[0]" in change ? id : null);
  });
  box.on("plotly_doubleclick", () => zoom(null));
  const boxes = () => [...inView].filter((other) => !stale.has(other) && drawn.charts[other])
    .map((other) => figures.get(other).querySelector(".plot"));
  const others = () => boxes().filter((other) => other !== box);
  const point = (targets, xval) => {
    isMirroring = true;
    for (const target of targets) Plotly.Fx.hover(target, {xval}, "xy");
    isMirroring = false;
  };
  box.on("plotly_hover", ({xvals, points}) => {
    if (!isMirroring) point(others(), xvals?.[0] ?? points[0].x);
  });
  box.on("plotly_click", ({points}) => {
    // A finger has no pointer that stays: show the values after the tap has ended.
    if (touch.matches) setTimeout(() => point(boxes(), points[0].x), 50);
  });
  box.on("plotly_unhover", () => {
    for (const other of others()) Plotly.Fx.unhover(other);
  });
  box.on("plotly_legendclick", ({curveNumber}) => {
    const {meta} = box.data[curveNumber];
    if (!shown.hidden.delete(meta)) shown.hidden.add(meta);
    update();
    return false;
  });
  box.on("plotly_legenddoubleclick", ({curveNumber}) => {
    const {meta} = box.data[curveNumber];
    const others = box.data.map((trace) => trace.meta).filter((other) => other !== meta);
    const isAlone = others.every((other) => shown.hidden.has(other));
    for (const other of others) isAlone ? shown.hidden.delete(other) : shown.hidden.add(other);
    shown.hidden.delete(meta);
    update();
    return false;
  });
}

form?.addEventListener("change", (event) => {
  shown.axis = event.target.value;
  zoom(null);
});
whole?.addEventListener("click", () => zoom(null));
dark.addEventListener("change", () => update());
// What is folded has no width, and is not printed.
const isOpen = (id) => figures.get(id).offsetWidth > 0;
addEventListener("beforeprint", () => [...stale].filter(isOpen).forEach(draw));

// A chart is drawn when it comes near the screen, so a page of many charts opens fast.
const observer = new IntersectionObserver((entries) => {
  for (const {target, isIntersecting} of entries) {
    if (isIntersecting) inView.add(target.id); else inView.delete(target.id);
    if (isIntersecting && stale.has(target.id)) draw(target.id);
  }
}, {rootMargin: "300px"});
for (const figure of figures.values()) observer.observe(figure);
