// A click on a column's head sorts the table by it; another turns the order round.
for (const head of document.querySelectorAll("th")) {
  head.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => {
      const text = row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].textContent;
      return text !== "" && !isNaN(text) ? Number(text) : text;
    };
    const order = (a, b) => (typeof a === "number" && typeof b === "number"
      ? a - b : String(a).localeCompare(String(b)));
    [...body.rows]
      .sort((a, b) => (up ? 1 : -1) * order(value(a), value(b)))
      .forEach((row) => body.append(row));
  });
}
