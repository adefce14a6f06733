// Curves that are read with mouse, finger or keyboard. mountFigure(element, spec) draws into an
// element; what stood there without a script is replaced. It gives back {update, destroy}.
//
// spec: {title, note, up, across, base, clocks, lines, marks, whole}
//   lines: [{name, colour, y, x, low, high, clock, faint, noisy}], of which `noisy` ones are smoothed
//   base: what x counts, "tokens" or "steps"; clocks[line.clock] has {tokens, steps, seconds} of the
//   same moments, so that another axis can be chosen; a line without x has a point for each moment
//   marks: [{y, name}], lines to compare with; whole: show the beginnings in full
const AXES = { tokens: "tokens", steps: "steps", seconds: "time" };
const LABELS = { tokens: "tokens seen", steps: "steps", seconds: "training time" };
const UNITS = [[86400, "days"], [3600, "hours"], [60, "minutes"], [1, "seconds"]];
const KEPT = "clozelab figures";
const shared = { axis: "", smooth: 0.9, ...recalled() }; // of all figures on a page
const mounted = new Set();
let count = 0;

function recalled() {
  try { return JSON.parse(sessionStorage.getItem(KEPT)) ?? {}; } catch { return {}; }
}

function share(change) {
  Object.assign(shared, change);
  try { sessionStorage.setItem(KEPT, JSON.stringify(shared)); } catch { /* a page on its own */ }
  for (const figure of mounted) figure.redraw();
}

function html(name, settings, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(settings)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

function svg(name, settings, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(settings)) {
    made.setAttribute(key, typeof value === "number" ? Math.round(value * 10) / 10 : value);
  }
  made.append(...inside);
  return made;
}

function scale(low, high, start, end, log) {
  const of = log ? Math.log : (value) => value;
  const first = of(low), width = of(high) - first || 1;
  const to = (value) => start + (of(value) - first) / width * (end - start);
  to.back = (place) => {
    const value = first + (place - start) / (end - start) * width;
    return log ? Math.exp(value) : value;
  };
  return to;
}

function ticks(low, high, most, log) {
  if (log && high / low > 4) {
    const all = (factors) => {
      const found = [];
      for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
        found.push(...factors.map((factor) => Number((factor * 10 ** e).toPrecision(1))));
      }
      return found.filter((tick) => tick >= low && tick <= high);
    };
    const fine = all([1, 2, 5]);
    return fine.length <= most + 2 ? fine : all([1]);
  }
  const rough = (high - low) / most || 1, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((factor) => size * factor >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + step / 1e6; n++) {
    found.push(Number((n * step).toPrecision(12)));
  }
  return found;
}

function short(value, digits = 4) {
  const size = Math.abs(value);
  const unit = [[1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([least]) => size >= least * 0.9995);
  let text;
  if (unit) text = Number((value / (unit[0] === 1e4 ? 1e3 : unit[0])).toPrecision(digits)) + unit[1];
  else if (size && size < 1e-3) text = Number(value.toPrecision(3)).toExponential();
  else text = String(Number(value.toPrecision(digits)));
  return text.replaceAll("-", "−");
}

function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle; else high = middle;
  }
  return value - sorted[low] <= sorted[high] - value ? low : high;
}

function interpolated(from, to, x) { // both rise, from 0
  let at = from.findIndex((one) => one >= x);
  if (at < 0) at = from.length - 1;
  const [x0, y0] = at ? [from[at - 1], to[at - 1]] : [0, 0];
  return y0 + (to[at] - y0) * (x - x0) / (from[at] - x0 || 1);
}

function smoothed(values, keep) {
  let mean = 0, weight = 0;
  return values.map((value) => {
    if (value == null) return null;
    mean = keep * mean + (1 - keep) * value;
    weight = keep * weight + 1 - keep;
    return mean / weight;
  });
}

function look(colour) { // as figures.py: a colour and, where that is not enough, dashes
  const dash = (Math.floor(colour / 4) + Math.floor(colour / 16)) % 4;
  return `c${colour % 8}` + (dash ? ` d${dash}` : "");
}

export function lineKey(line) { // a piece of a line, for legends
  return svg("svg", { class: "key", viewBox: "0 0 26 10", "aria-hidden": "true" },
    svg("line", { class: `${line.faint ? "faint" : "line"} ${look(line.colour)}`, x1: 0, x2: 26, y1: 5, y2: 5 }));
}

export function mountFigure(element, first) {
  const hidden = new Set(), log = { x: false, y: false };
  let spec = first, zoom = null, cursor = null, drag = null, lit = null, view = null, seen = {};
  const number = count++;

  const caption = html("figcaption", {}), title = html("div", {}, html("h3", {}, spec.title ?? ""));
  if (spec.note) title.append(html("p", { class: "note" }, spec.note));
  const plot = html("div", { class: "plot" }), names = html("p", { class: "legend" });
  const says = html("output", { class: "unseen", "aria-live": "polite" });
  const tip = html("div", { class: "tip", "aria-hidden": "true", hidden: "" });
  const tools = html("div", { class: "tools", role: "group", "aria-label": "view of this figure" });
  element.replaceChildren(caption, plot, names, says);
  caption.append(title, tools);

  const axis = html("select", { "aria-label": "horizontal axis" });
  const smooth = html("input", { type: "range", min: 0, max: 0.99, step: 0.01 });
  const smoothing = html("label", {}, "smooth", smooth);
  const whole = html("button", { type: "button", title: "Show all (Escape)" }, "show all");
  const logs = ["x", "y"].map((side) => {
    const button = html("button", { type: "button", "aria-pressed": "false" }, `log ${side}`);
    button.onclick = () => {
      log[side] = !log[side];
      button.setAttribute("aria-pressed", log[side]);
      draw();
    };
    return button;
  });
  axis.onchange = () => { zoom = null; share({ axis: axis.value }); };
  smooth.oninput = () => share({ smooth: Number(smooth.value) });
  whole.onclick = () => { zoom = null; draw(); canvas.focus(); };
  tools.append(whole, axis, ...logs, smoothing);

  const canvas = svg("svg", { tabindex: 0, role: "application", "aria-roledescription": "figure" });
  plot.append(canvas, tip);

  const base = () => spec.base ?? "";
  const timed = () => Boolean(base()) && spec.lines.every((line) => spec.clocks?.[line.clock]);
  const chosen = () => (timed() && shared.axis in AXES ? shared.axis : base());

  function lines() { // with x of the axis and smoothed y, kept until something changes
    const key = `${chosen()} ${shared.smooth}`;
    if (seen.key === key) return seen.lines;
    seen = { key, lines: spec.lines.map((line) => {
      const clock = spec.clocks?.[line.clock], own = line.x ?? clock[base()];
      const x = !clock || chosen() === base() ? own
        : own.map((one) => interpolated(clock[base()], clock[chosen()], one));
      const y = line.noisy && shared.smooth ? smoothed(line.y, shared.smooth) : line.y;
      return { ...line, raw: line.y, x, y };
    }) };
    return seen.lines;
  }

  const shown = () => lines().filter((line) => !hidden.has(line.name));
  const called = (line) => (line.faint ? `${line.name} (in training)` : line.name);

  function range() { // of x, and of y as far as it is seen
    const every = lines().flatMap((line) => line.x);
    const positive = every.filter((x) => x > 0);
    const last = Math.max(...every), least = log.x ? Math.min(...positive) : Math.min(0, ...every);
    const [from, to] = zoom ?? [least, last > least ? last : least + 1];
    // The first steps are far above the rest, and would flatten the curves.
    const start = zoom || spec.whole || log.x ? from : from + 0.05 * (to - from);
    const inside = (low) => shown().flatMap((line) => ["y", "low", "high"].flatMap((side) =>
      (line[side] ?? []).filter((y, n) => y != null && line.x[n] >= low && line.x[n] <= to)));
    let values = inside(start);
    if (!values.length) values = inside(from);
    if (!zoom) values.push(...(spec.marks ?? []).map((mark) => mark.y));
    if (log.y) values = values.filter((y) => y > 0);
    let bottom = Math.min(...values), top = Math.max(...values);
    if (!values.length) [bottom, top] = [1, 2];
    if (log.y) {
      const margin = Math.max((top / bottom) ** 0.06, 1.01);
      [bottom, top] = [bottom / margin, top * margin];
    } else {
      const margin = 0.06 * (top - bottom || Math.abs(top) || 1);
      [bottom, top] = [bottom - margin, top + margin];
    }
    return { least, last, from: log.x ? Math.max(from, least) : from, to, bottom, top };
  }

  function draw() {
    if (!lines().some((line) => line.x.length)) return;
    const width = Math.max(plot.clientWidth, 240);
    const height = Math.round(Math.min(Math.max(0.5 * width, 230), 380));
    const all = range(), [right, top, bottom] = [14, 10, 40];
    const levels = ticks(all.bottom, all.top, Math.max(3, height / 55), log.y);
    const left = 32 + 6.8 * Math.max(...levels.map((tick) => short(tick).length), 2);
    const x = scale(all.from, all.to, left, width - right, log.x);
    const y = scale(all.bottom, all.top, height - bottom, top, log.y);
    view = { ...all, x, y, left, right: width - right, top, bottom: height - bottom };
    const unit = chosen() === "seconds"
      ? UNITS.find(([size]) => all.to >= 2 * size) ?? UNITS[3] : [1, ""];
    view.unit = unit;
    const label = chosen() && chosen() !== base() ? LABELS[chosen()] : spec.across;
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.setAttribute("height", height);
    canvas.replaceChildren();
    const text = (x, y, says, more = {}) => canvas.append(
      svg("text", { class: "tick", "text-anchor": "middle", x, y, ...more }, says));
    for (const tick of levels) {
      canvas.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
      text(left - 8, y(tick) + 4, short(tick), { "text-anchor": "end" });
    }
    const most = Math.max(2, Math.min(9, width / 95));
    for (const tick of ticks(all.from / unit[0], all.to / unit[0], most, log.x)) {
      if (!spec.base && !spec.clocks && all.to > 1 && tick % 1) continue; // no layer is between two
      const place = x(tick * unit[0]);
      canvas.append(svg("line", { class: "grid", x1: place, x2: place, y1: height - bottom, y2: height - bottom + 4 }));
      text(place, height - bottom + 17, short(tick));
    }
    text((left + width - right) / 2, height - 5, unit[1] ? `${label}, ${unit[1]}` : label);
    text(0, 0, spec.up, { transform: `translate(12 ${(top + height - bottom) / 2}) rotate(-90)` });
    canvas.append(svg("clipPath", { id: `clip${number}` }, svg("rect", {
      x: left - 3, y: top - 3, width: width - left - right + 6, height: height - top - bottom + 6 })));
    const inside = svg("g", { "clip-path": `url(#clip${number})` });
    canvas.append(inside);
    for (const mark of spec.marks ?? []) {
      inside.append(svg("line", { class: "chance", x1: left, x2: width - right, y1: y(mark.y), y2: y(mark.y) }));
      inside.append(svg("text", { class: "tick", x: left + 6, y: y(mark.y) - 5 }, mark.name));
    }
    const order = [...shown()].sort((a, b) => Boolean(b.faint) - Boolean(a.faint));
    for (const line of order.filter((one) => one.low)) {
      const edge = (side) => line.x.map((at, n) => `${x(at).toFixed(1)},${y(line[side][n]).toFixed(1)}`);
      inside.append(svg("polygon", { class: `band c${line.colour % 8} ${dimmed(line)}`,
        points: [...edge("low"), ...edge("high").reverse()].join(" ") }));
    }
    for (const line of order) {
      if (line.noisy && !line.faint && shared.smooth) {
        inside.append(svg("path", { class: `ghost c${line.colour % 8} ${dimmed(line)}`, d: path(line.x, line.raw) }));
      }
      inside.append(svg("path", { class: `${line.faint ? "faint" : "line"} ${look(line.colour)} ${dimmed(line)}`, d: path(line.x, line.y) }));
    }
    for (const line of order.filter((one) => !one.faint)) {
      const end = line.y.findLastIndex((value) => value != null);
      if (end >= 0) inside.append(svg("circle", { class: `dot c${line.colour % 8} ${dimmed(line)}`, cx: x(line.x[end]), cy: y(line.y[end]), r: 3.5 }));
    }
    view.over = svg("g", { class: "over" });
    canvas.append(view.over);
    if (cursor != null) point(cursor);
    whole.hidden = !zoom;
    describe(label);
  }

  const dimmed = (line) => (lit && lit !== line.name ? "dim" : "");

  function path(xs, ys) {
    let found = "", pen = "M";
    xs.forEach((at, n) => {
      const bad = ys[n] == null || (log.y && ys[n] <= 0) || (log.x && at <= 0);
      if (!bad) found += `${pen}${view.x(at).toFixed(1)} ${view.y(ys[n]).toFixed(1)}`;
      pen = bad ? "M" : "L";
    });
    return found;
  }

  function describe(label) {
    const ends = shown().filter((line) => !line.faint).slice(0, 8).map((line) => {
      const known = line.y.filter((one) => one != null);
      return known.length ? `${line.name} from ${short(known[0])} to ${short(known.at(-1))}` : "";
    }).filter(Boolean).join("; ");
    const title = [spec.title ?? spec.up, spec.note].filter(Boolean).join(", ");
    canvas.setAttribute("aria-label", `${title}, over ${label}: ${ends}.`
      + " Arrow keys read values, plus and minus zoom, Escape shows all.");
  }

  function point(at) { // the values there
    cursor = Math.min(Math.max(at, view.from), view.to);
    const rows = [];
    view.over.replaceChildren();
    for (const line of shown()) {
      if (!line.x.length) continue;
      const n = nearest(line.x, cursor), place = view.x(line.x[n]);
      if (line.y[n] == null || line.x[n] < view.from || line.x[n] > view.to) continue;
      const beyond = cursor < line.x[0] || cursor > line.x.at(-1);
      if (beyond && Math.abs(place - view.x(cursor)) > 12) continue;
      rows.push({ line, x: line.x[n], y: line.y[n], place });
    }
    if (!rows.length) { tip.hidden = true; return; }
    const here = view.x(cursor);
    const middle = rows.reduce((a, b) => (Math.abs(a.place - here) <= Math.abs(b.place - here) ? a : b));
    view.over.append(svg("line", { class: "hair", x1: middle.place, x2: middle.place, y1: view.top, y2: view.bottom }));
    rows.sort((a, b) => b.y - a.y);
    for (const row of rows) {
      const y = Math.min(Math.max(view.y(row.y), view.top), view.bottom);
      view.over.append(svg("circle", { class: `dot c${row.line.colour % 8}`, cx: row.place, cy: y, r: row.line.faint ? 3 : 4.5 }));
    }
    const name = AXES[chosen()] === "time" ? view.unit[1] : AXES[chosen()] ?? spec.across;
    const head = `${short(middle.x / view.unit[0])} ${name}`;
    const most = 12, list = rows.slice(0, most).map((row) => html("div", {},
      lineKey(row.line), html("span", {}, called(row.line)), html("b", {}, short(row.y))));
    if (rows.length > most) list.push(html("div", {}, `and ${rows.length - most} more`));
    tip.replaceChildren(html("strong", {}, head), ...list);
    tip.hidden = false;
    const side = middle.place > (view.left + view.right) / 2;
    const room = plot.clientWidth - tip.offsetWidth;
    const wanted = side ? middle.place - tip.offsetWidth - 14 : middle.place + 14;
    tip.style.left = `${Math.min(Math.max(wanted, 0), Math.max(room, 0))}px`;
    const high = rows.filter((row) => view.y(row.y) < (view.top + view.bottom) / 2).length > rows.length / 2;
    tip.style.top = `${high ? Math.max(view.bottom - tip.offsetHeight - 8, 0) : view.top}px`;
    view.head = head;
    view.rows = rows;
  }

  function read(at) { // and say them
    point(at);
    const rows = (view.rows ?? []).map((row) => `${called(row.line)} ${short(row.y)}`);
    says.textContent = tip.hidden ? "" : `${view.head}: ${rows.join(", ")}`;
  }

  function leave() {
    cursor = null;
    tip.hidden = true;
    view.over.replaceChildren();
  }

  function show(from, to) {
    const low = Math.max(from, view.least), high = Math.min(to, view.last);
    zoom = low <= view.least && high >= view.last ? null : [low, high];
    draw();
  }

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (event.clientX - box.left) * (plot.clientWidth / box.width || 1);
    return Math.min(Math.max(at, view.left), view.right);
  };
  canvas.onpointermove = (event) => {
    const at = place(event);
    point(view.x.back(at));
    if (drag == null || Math.abs(at - drag) < 6) return;
    tip.hidden = true;
    view.over.append(svg("rect", { class: "span", x: Math.min(at, drag), width: Math.abs(at - drag),
      y: view.top, height: view.bottom - view.top }));
  };
  canvas.onpointerdown = (event) => {
    if (event.button) return;
    drag = place(event);
    canvas.setPointerCapture(event.pointerId);
    point(view.x.back(drag));
  };
  canvas.onpointerup = (event) => {
    const ends = drag == null ? [] : [drag, place(event)].sort((a, b) => a - b);
    drag = null;
    if (ends[1] - ends[0] >= 6) { leave(); show(...ends.map(view.x.back)); }
  };
  canvas.onpointercancel = () => { drag = null; leave(); };
  canvas.onpointerleave = (event) => { if (drag == null && event.pointerType === "mouse") leave(); };
  canvas.ondblclick = () => { zoom = null; draw(); };
  canvas.onblur = leave;

  canvas.onkeydown = (event) => {
    const stops = [...new Set(shown().filter((line) => !line.faint).flatMap((line) => line.x))]
      .filter((at) => at >= view.from && at <= view.to).sort((a, b) => a - b);
    const now = cursor == null ? -1 : nearest(stops, cursor);
    const wide = view.to - view.from, middle = cursor ?? (view.from + view.to) / 2;
    const pan = (by) => {
      const at = Math.min(Math.max(view.from + by, view.least), view.last - wide);
      show(at, at + wide);
    };
    const acts = {
      ArrowRight: () => (event.shiftKey ? pan(wide / 4) : read(stops[Math.min(now + 1, stops.length - 1)])),
      ArrowLeft: () => (event.shiftKey ? pan(-wide / 4) : read(stops[now < 0 ? stops.length - 1 : Math.max(now - 1, 0)])),
      Home: () => read(stops[0]),
      End: () => read(stops.at(-1)),
      "+": () => show(middle - wide / 4, middle + wide / 4),
      "-": () => show(middle - wide, middle + wide),
      Escape: () => { zoom = null; leave(); draw(); },
    };
    acts["="] = acts["+"];
    acts["0"] = acts.Escape;
    if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey || !stops.length) return;
    event.preventDefault();
    acts[event.key]();
  };

  function legend() {
    const own = spec.lines.filter((line, n) => !line.faint
      || !spec.lines.some((other, m) => other.name === line.name && (!other.faint || m < n)));
    names.replaceChildren(...own.map((line) => {
      const button = html("button", { type: "button", "aria-pressed": !hidden.has(line.name), title: "Show or hide; double click: this one alone" }, lineKey(line), line.name);
      const set = (hide) => {
        hidden.clear();
        hide.forEach((name) => hidden.add(name));
        legend();
        draw();
      };
      button.onclick = () => {
        const at = own.indexOf(line), next = new Set(hidden);
        if (!next.delete(line.name)) next.add(line.name);
        set(next);
        names.children[at].focus();
      };
      button.ondblclick = () => {
        const others = own.map((one) => one.name).filter((name) => name !== line.name);
        set(others.every((name) => hidden.has(name)) ? [] : others);
      };
      button.onmouseenter = () => { lit = line.name; draw(); };
      button.onmouseleave = () => { lit = null; draw(); };
      return button;
    }));
  }

  function settle() { // what can be chosen
    axis.hidden = !timed();
    axis.replaceChildren(...Object.keys(AXES).map(
      (name) => html("option", { value: name }, AXES[name])));
    smoothing.hidden = !spec.lines.some((line) => line.noisy);
    redraw();
  }

  function redraw() {
    axis.value = chosen();
    smooth.value = shared.smooth;
    draw();
  }

  const watch = new ResizeObserver(() => { if (view) draw(); });
  const figure = {
    redraw,
    update(next) { spec = next; seen = {}; legend(); settle(); },
    destroy() { watch.disconnect(); mounted.delete(figure); element.replaceChildren(); },
  };
  mounted.add(figure);
  legend();
  settle();
  watch.observe(plot);
  return figure;
}
