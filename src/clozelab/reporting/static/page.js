// A click on a column's head, or Enter, sorts the table by it; another turns the order round.
// A cell that holds nothing stays at the end.
for (const head of document.querySelectorAll("th")) {
  const value = (row) => {
    const cell = row.cells[head.cellIndex];
    const text = cell.dataset.value ?? cell.textContent;
    return text !== "" && !isNaN(text) ? Number(text) : text;
  };
  const order = (a, b) => (typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b)));
  const sort = () => {
    const body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows];
    const empty = (row) => ["", "–"].includes(value(row));
    const full = rows.filter((row) => !empty(row));
    full.sort((a, b) => (up ? 1 : -1) * order(value(a), value(b)));
    body.append(...full, ...rows.filter(empty));
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (key) => {
    if (key.key !== "Enter" && key.key !== " ") return;
    key.preventDefault();
    sort();
  });
}
