// Runs: a live overview of runs, fine-tunings and studies. It only reads; figures are those of pages.
import { counted, el, whole } from "./dom.js";
import { lineKey, mountFigure } from "./figures.js";
import { sortable } from "./tables.js";

const PAUSE = 3000; // milliseconds between looks
const STATES = {
  running: "running", starting: "starting", finished: "finished", done: "done",
  stopped: "stopped", failed: "failed", waiting: "waiting", unreadable: "cannot be read",
};

function styles() { // of figures, and of this room
  for (const name of ["figures.css", "runs.css"]) {
    const href = new URL(name, import.meta.url).pathname;
    if (!document.querySelector(`link[href="${href}"]`)) document.head.append(el("link", { rel: "stylesheet", href }));
  }
}

const fixed = (value, digits) => (value == null ? "–" : value.toFixed(digits).replace("-", "−"));
const count = (value) => (value == null ? "–" : whole(Math.round(value)));

function scaled(value) {
  const [size, letter] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([least]) => value >= least) ?? [];
  return size ? `${(value / size).toFixed(size > 1e6 ? 2 : 1)} ${letter}` : count(value);
}

function duration(seconds) {
  if (seconds == null) return "–";
  const minutes = Math.round(seconds / 60);
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const words = (name) => name.replaceAll("_", " ");
const badge = (state) => el("span", { class: `state ${state}` }, STATES[state] ?? state);

function bar(share, label) {
  const percent = Math.floor(100 * Math.min(Math.max(share, 0), 1));
  return el("progress", { max: 100, value: percent, "aria-label": label }, `${percent} %`);
}

// A table that keeps its order while its rows are written anew; a cell is a node, a text, or
// {text, value}.
function liveTable(label) {
  const table = el("table", { "aria-label": label }), place = el("div", { class: "wide" }, table);
  const note = el("p", { class: "note" });
  let heads = "", sort = null;
  place.show = (columns, rows, says = "") => {
    const numeric = columns.map((_, at) => rows.some((row) => row[at]?.value !== undefined && !row[at].node));
    if (heads !== columns.join("\n")) {
      heads = columns.join("\n");
      const cells = columns.map((name, at) => el("th", { scope: "col", class: numeric[at] ? "n" : null }, name));
      table.replaceChildren(el("thead", {}, el("tr", {}, cells)), el("tbody", {}));
      sort = sortable(table);
    }
    const focus = document.activeElement?.dataset?.run;
    table.tBodies[0].replaceChildren(...rows.map((row) => el("tr", {}, row.map((cell, at) =>
      el("td", { class: numeric[at] ? "n" : null, "data-value": cell?.value }, cell?.node ?? cell?.text ?? cell)))));
    sort();
    if (focus) table.querySelector(`input[data-run="${CSS.escape(focus)}"]`)?.focus();
    note.textContent = says;
    place.hidden = !rows.length;
  };
  place.append(note);
  return place;
}

// Figures that stay mounted, with their zoom, while their data change.
function liveFigures() {
  const place = el("div", { class: "figures" }), mounted = new Map();
  place.show = (charts, clocks, hidden = new Set()) => {
    const seen = new Set();
    for (const chart of charts) {
      const name = `${chart.title}\n${chart.note ?? ""}`;
      const lines = chart.lines.filter((line) => !hidden.has(line.name));
      if (!lines.length) continue;
      seen.add(name);
      const spec = { ...chart, lines, clocks };
      if (mounted.has(name)) mounted.get(name).figure.update(spec);
      else {
        const element = el("figure", {});
        place.append(element);
        mounted.set(name, { element, figure: mountFigure(element, spec) });
      }
    }
    for (const [name, { element, figure }] of mounted) {
      if (seen.has(name)) continue;
      figure.destroy();
      element.remove();
      mounted.delete(name);
    }
  };
  place.clear = () => { for (const { figure } of mounted.values()) figure.destroy(); mounted.clear(); };
  return place;
}

function runRow(run, losses, probes, hidden, redraw) {
  if (run.error) return [{ node: el("span", {}, run.name) }, { node: el("span", { class: "problem" }, run.error) }];
  const box = el("input", { type: "checkbox", "data-run": run.name, "aria-label": `show ${run.name} in the figures` });
  box.checked = !hidden.has(run.name);
  box.onchange = () => {
    if (box.checked) hidden.delete(run.name); else hidden.add(run.name);
    redraw();
  };
  const share = run.steps ? run.step / run.steps : 0;
  const grave = run.findings.filter((one) => one.level === "ill").length;
  return [
    { node: el("span", { class: "run" }, box, lineKey({ colour: run.colour }), run.name), value: run.name },
    { node: el("span", {}, badge(run.state), run.state === "running" ? bar(share, `${run.name}: done`) : ""), value: run.state },
    run.recipe,
    { text: `${count(run.step)} of ${count(run.steps)}`, value: run.step },
    { text: scaled(run.tokens), value: run.tokens },
    { text: run.tokens_a_second == null ? "–" : `${count(run.tokens_a_second / 1e3)} k`, value: run.tokens_a_second ?? "–" },
    { text: duration(run.seconds), value: run.seconds },
    { text: duration(run.seconds_left), value: run.seconds_left ?? "–" },
    ...losses.map((name) => {
      const loss = run.losses[name]?.held_out ?? run.losses[name]?.train;
      const training = run.losses[name] && run.losses[name].held_out == null;
      return { text: fixed(loss, 3) + (training ? " *" : ""), value: loss ?? "–" };
    }),
    ...probes.map((name) => ({ text: fixed(run.probes[name], 1), value: run.probes[name] ?? "–" })),
    { text: run.findings.length ? (grave ? `${grave} ill` : `${run.findings.length} to look at`) : "–", value: run.findings.length ? run.findings.length + 10 * grave : "–" },
  ];
}

function findings(runs) {
  return runs.filter((run) => run.findings?.length).map((run) => el("section", { class: "finding" },
    el("h3", {}, run.name), el("ul", {}, run.findings.map((one) => el("li", {},
      el("b", { class: one.level }, one.title), ` ${one.evidence}. `, el("span", { class: "note" }, one.remedy))))));
}

function studyPanel() {
  const title = el("h3", {}), question = el("p", { class: "note" }), state = el("p", { class: "far" });
  const cells = el("table", { class: "cells" }), verdicts = el("ul", { class: "verdicts" });
  const tables = [liveTable("scores"), liveTable("differences")];
  const names = tables.map(() => el("h4", {})), figures = liveFigures();
  const more = el("details", {}, el("summary", {}, "verdicts, scores and curves"), verdicts,
    tables.flatMap((one, at) => [names[at], one]), figures);
  const panel = el("section", { class: "study" }, title, question, state, el("div", { class: "wide" }, cells), more);
  more.open = true;
  panel.show = (study) => {
    title.textContent = `${study.name}: ${study.title}`;
    question.textContent = study.question;
    const failed = study.failed ? `, ${study.failed} failed` : "";
    state.replaceChildren(badge(study.state), bar(study.done / study.planned, "cells done"),
      ` ${study.done} of ${study.planned} cells are done${failed}`);
    const seeds = [...new Set(study.variants.flatMap((one) => one.cells.map((cell) => cell.seed)))].sort((a, b) => a - b);
    cells.replaceChildren(
      el("caption", { class: "unseen" }, `Cells of ${study.name}`),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "variant"), seeds.map((seed) => el("th", { scope: "col" }, `seed ${seed}`)), el("th", { scope: "col" }, "what it is"))),
      el("tbody", {}, study.variants.map((variant) => el("tr", {}, el("th", { scope: "row" }, variant.name),
        seeds.map((seed) => {
          const cell = variant.cells.find((one) => one.seed === seed);
          if (!cell) return el("td", {});
          const part = cell.state === "running" || cell.state === "stopped" ? ` ${Math.floor(100 * cell.share)} %` : "";
          return el("td", { title: cell.why }, el("span", { class: `state ${cell.state}` }, STATES[cell.state] + part));
        }), el("td", { class: "note" }, variant.says)))));
    verdicts.replaceChildren(...study.verdicts.map((one) => el("li", {}, el("b", {}, one.verdict), ` “${one.says}” `, el("span", { class: "note" }, one.sentence))));
    tables.forEach((one, at) => {
      const found = study.tables[at];
      names[at].textContent = found?.title ?? "";
      one.show(found?.columns ?? [], found?.rows ?? [], found?.note);
    });
    figures.show(study.charts, study.clocks);
  };
  panel.clear = figures.clear;
  return panel;
}

// Children that stay, one for each name.
function keyed(place, make) {
  const known = new Map();
  place.show = (rows) => {
    for (const row of rows) {
      if (!known.has(row.name)) {
        known.set(row.name, make());
        place.append(known.get(row.name));
      }
      known.get(row.name).show(row);
    }
    for (const [name, child] of known) {
      if (rows.some((row) => row.name === name)) continue;
      child.clear?.();
      child.remove();
      known.delete(name);
    }
  };
  place.clear = () => known.forEach((child) => child.clear?.());
  return place;
}

function tuningPanel() {
  const title = el("h3", {}), state = el("p", { class: "far" }), scores = liveTable("scores");
  const panel = el("section", {}, title, state, scores);
  panel.show = (row) => {
    title.textContent = `${row.name}: ${row.task}`;
    state.replaceChildren(badge(row.state), row.done == null ? "" : ` ${counted(row.done, "run")} done`);
    scores.show(row.table?.columns ?? [], row.table?.rows ?? [], row.table?.note);
  };
  return panel;
}

export function mountRuns(element, fetchJson) {
  styles();
  const far = el("p", { class: "lead", "aria-live": "polite" }, "Reading the runs…");
  const problem = el("p", { class: "problem", role: "alert" });
  const headed = (title, ...inside) => el("section", { hidden: "" }, el("h2", {}, title), inside);
  const runs = liveTable("runs"), figures = liveFigures(), ill = el("div", {}), differences = liveTable("differences");
  const studies = keyed(el("div", {}), studyPanel), tunings = keyed(el("div", {}), tuningPanel);
  const parts = {
    studies: headed("Studies", studies), runs: headed("Pretraining", runs, figures), findings: headed("What the doctor sees", ill),
    tunings: headed("Fine-tuning", tunings), differences: headed("Differences between the recipes", differences),
  };
  const hidden = new Set();
  let timer = 0, last = "", found = null, gone = false;

  function show() {
    const known = found.runs.filter((run) => !run.error);
    const names = (of) => [...new Set(known.flatMap((run) => Object.keys(run[of])))];
    const [losses, probes] = [names("losses"), names("probes")];
    const columns = ["run", "state", "recipe", "step", "tokens", "tokens/s", "time", "left",
      ...losses.map((name) => `${words(name)} loss`), ...probes.map((name) => `probe ${words(name)}`), "doctor"];
    const rows = found.runs.map((run) => runRow(run, losses, probes, hidden, show));
    const training = known.some((run) => Object.values(run.losses).some((loss) => loss.held_out == null));
    runs.show(columns, rows.map((row) => [...row, ...Array(columns.length - row.length).fill("")]),
      "Losses are on held-out text" + (training ? "; * in training." : ".")
      + (found.comparable ? "" : " Under different tokenizers, or on different text, they cannot be compared."));
    figures.show(found.charts, found.clocks, hidden);
    ill.replaceChildren(...findings(known));
    studies.show(found.studies);
    tunings.show(found.tunings);
    differences.show(found.differences?.columns ?? [], found.differences?.rows ?? []);
    parts.runs.hidden = !found.runs.length;
    parts.findings.hidden = !ill.children.length;
    parts.studies.hidden = !found.studies.length;
    parts.tunings.hidden = !found.tunings.length;
    parts.differences.hidden = !found.differences;
    const every = [...found.runs, ...found.studies, ...found.tunings];
    const states = ["running", "starting", "stopped", "finished", "unreadable"];
    const told = states.map((state) => [every.filter((one) => one.state === state).length, STATES[state]]);
    far.textContent = told.filter(([many]) => many).map(([many, state]) => `${many} ${state}`).join(", ")
      || "No run was given. Start the server with one: clozelab serve RUN";
  }

  async function look() {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        const next = await fetchJson("/api/runs"), text = JSON.stringify(next);
        if (gone) return;
        problem.textContent = "";
        if (text !== last) {
          [last, found] = [text, next];
          show();
        }
      } catch (error) {
        problem.textContent = error.message;
      }
    }
    if (!gone) timer = setTimeout(look, PAUSE);
  }

  const seen = () => { if (!document.hidden) look(); };
  document.addEventListener("visibilitychange", seen);
  element.append(el("div", { class: "overview" }, el("h1", {}, "Runs"), far, problem, Object.values(parts)));
  look();
  return () => {
    gone = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
    for (const one of [figures, studies, tunings]) one.clear();
  };
}
