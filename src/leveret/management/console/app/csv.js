// Tables as files.

/**
 * Returns rows as CSV (RFC 4180). Spreadsheets execute texts that begin like a formula, and clients choose names: such texts
 * get a quote in front.
 */
export function csv(titles, rows) {
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    if (typeof value !== "number" && /^[=+\-@\t\r]/.test(text)) {
      text = `'${text}`;
    }
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [titles, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** Has the browser save a file. */
export function save(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
