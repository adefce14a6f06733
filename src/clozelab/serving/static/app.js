// The frame: rooms by the address's hash, light and dark, and how the server is asked.
import { el } from "./dom.js";

const ROOMS = [
  { name: "cloze", title: "Cloze", load: () => import("./cloze.js").then((m) => m.mountCloze) },
  { name: "surprisal", title: "Surprisal", load: () => import("./surprisal.js").then((m) => m.mountSurprisal) },
  { name: "masks", title: "Masks", load: () => import("./masks.js").then((m) => m.mountMasks) },
  { name: "runs", title: "Runs", load: () => import("./runs.js").then((m) => m.mountRuns) },
];

// What the server answers; its sentence is the error's where it refuses. Without a body it is a GET.
export async function fetchJson(path, body, signal) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, { ...(body === undefined ? {} : post), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer; is clozelab serve still running?");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

const room = document.getElementById("room");
const links = ROOMS.map(({ name, title }) => el("a", { href: `#${name}` }, title));
let leave = null;
let visit = 0;

async function enter(focus) {
  const chosen = ROOMS.find(({ name }) => location.hash === `#${name}`) ?? ROOMS[0];
  const mine = ++visit;
  ROOMS.forEach(({ name }, at) => {
    if (name === chosen.name) links[at].setAttribute("aria-current", "page");
    else links[at].removeAttribute("aria-current");
  });
  document.title = `${chosen.title} – clozelab`;
  const mount = await chosen.load();
  if (mine !== visit) return;
  leave?.();
  room.replaceChildren();
  leave = mount(room, fetchJson) ?? null;
  if (focus) room.focus();
}

const THEMES = ["auto", "light", "dark"];
const button = document.getElementById("theme");

function paint(theme) {
  document.documentElement.dataset.theme = theme;
  button.textContent = { auto: "Light or dark: auto", light: "Light", dark: "Dark" }[theme];
  button.setAttribute("aria-label", `Colours: ${theme}; change`);
}

button.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("clozelab theme", next);
  paint(next);
});
paint(THEMES.find((each) => each === localStorage.getItem("clozelab theme")) ?? "auto");

if (location.search) history.replaceState(null, "", `/${location.hash}`); // the token is a cookie now
document.getElementById("rooms").append(...links);
addEventListener("hashchange", () => enter(true));
enter(false);
