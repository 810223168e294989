"use strict";
// Comparisons such as `lr<0.1`, joined by and, as runmanager/tables/where.py reads them.
// A column is an array of values; {text: "(1, 2)"} is a value that is compared as it is written.
const where = (() => {
  const COMPARISON = /^\s*([^<>=!]+?)\s*(<=|>=|!=|==?|<|>)\s*([^<>=]+?)\s*$/u;
  const LESS = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };

  class Refused extends Error {}

  const written = (value) => (value === null ? "none" : String(value.text ?? value).toLowerCase());

  const comparison = (text, columns) => {
    const match = COMPARISON.exec(text);
    if (!match) throw new Refused("write comparisons of a column with a value, such as lr<0.1, joined by and");
    const [, name, sign] = match;
    const given = match[3].replace(/^(["'])(.*)\1$/, "$2"); // as pandas writes a text
    const column = columns.get(name);
    if (!column) {
      throw new Refused(`these runs have no column '${name}'; they have: ${[...columns.keys()].join(", ")}`);
    }
    const number = Number(given.replace(/^([+-]?)inf$/i, "$1Infinity"));
    const bound = Number.isNaN(number) ? given : number;
    const present = column.filter((value) => value !== null && !Number.isNaN(value));
    if (typeof bound !== "number" && !/^(nan|none)$/i.test(given) && present.length && present.every((value) => typeof value === "number")) {
      throw new Refused(`column '${name}' holds numbers, got '${given}': write ${name}<0.1`);
    }
    const less = LESS[sign];
    if (less) return (row) => typeof column[row] === typeof bound && less(column[row], bound);
    const isEqual = (value) => (typeof value === "number" && typeof bound === "number" ? value === bound
      : written(value) === given.toLowerCase());
    return (row) => isEqual(column[row]) === (sign !== "!=");
  };

  // Returns a function of the index of a row; `columns` is a Map of names.
  const parse = (text, columns) => {
    const all = text.split(/\s+and\s+/i).map((each) => comparison(each, columns));
    return (row) => all.every((test) => test(row));
  };
  return { parse, Refused };
})();
