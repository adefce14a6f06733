// Runs: how far each is, and its last losses.
import { el } from "./dom.js";

const PAUSE = 3000; // milliseconds between looks

export function mountRuns(room, fetchJson) {
  const shown = el("div", { class: "wide" });
  const problem = el("p", { class: "problem", role: "alert" });
  let timer = 0;
  async function look() {
    try {
      const { runs } = await fetchJson("/api/runs");
      problem.textContent = runs.length ? "" : "No run was given. Start the server with one: clozelab serve RUN";
      shown.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ["run", "state", "last losses"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, runs.map((run) => el("tr", {}, el("td", {}, run.name), el("td", {}, run.error ?? (run.done ? "done" : "under way")),
          el("td", {}, Object.entries(run.losses ?? {}).map(([name, [step, loss]]) => `${name} ${loss.toFixed(3)} at step ${step}`).join(", ")))))));
    } catch (error) {
      problem.textContent = error.message;
    }
    timer = setTimeout(look, PAUSE);
  }
  room.append(el("h1", {}, "Runs"), shown, problem);
  look();
  return () => clearTimeout(timer);
}
