// The tables of a page sort.
document.querySelectorAll("table").forEach(sortable);
