"use strict";
// Conditions such as `lr<0.1 and status=failed`: comparisons as runmanager/tables/where.py reads them, joined by and, or.
// A column is an array of values; {text: "(1, 2)"} is a value that is compared as it is written.
const where = (() => {
  const QUOTED = `"[^"]*"|'[^']*'`;
  const COMPARISON = new RegExp(`\\s*(?<name>${QUOTED}|\`[^\`]*\`|[^"'\`<>=!]+?)\\s*(?<sign><=|>=|!=|==?|<|>|\\s(?:not\\s+)?in\\b)\\s*`
    + `(?<value>\\((?:${QUOTED}|[^"')])*\\)|${QUOTED}|[^"'<>=!]+?)\\s*(?:$|\\s(?<next>and|or)\\b)`, "iyu");
  const NUMBER = /^(?:[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf)$/;
  const CONSTANTS = new Map([["true", "True"], ["false", "False"], ["none", "None"], ["nan", NaN]]);
  const LESS = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };

  class Refused extends Error {}

  // numbers are compared with numbers, all else as it is written
  const plain = (value) => (typeof value === "number" || typeof value === "string" ? value
    : value === null ? "None" : typeof value === "boolean" ? (value ? "True" : "False") : value.text);
  const unquoted = (text) => (/^["'`]/.test(text) ? text.slice(1, -1) : text);
  const readings = (text) => {
    const content = unquoted(text);
    if (content !== text) return [content];
    if (CONSTANTS.has(text.toLowerCase())) return [CONSTANTS.get(text.toLowerCase()), text];
    return NUMBER.test(text) ? [Number(text.replace("inf", "Infinity")), text] : [text];
  };
  const isEqual = (value, given) => value === given || (Number.isNaN(value) && Number.isNaN(given));

  const comparison = ({ name, sign, value }, columns) => {
    const column = columns.get(unquoted(name).trim());
    if (!column) {
      throw new Refused(`these runs have no column '${unquoted(name)}'; they have: ${[...columns.keys()].join(", ")}`);
    }
    const less = LESS[sign];
    if (less) {
      const [bound] = readings(value);
      const type = typeof bound;
      if (!column.some((each) => typeof each === type)) {
        throw new Refused(`column '${unquoted(name)}' has no ${type === "number" ? "numbers" : "text"} to compare with ${value}`);
      }
      return (row) => typeof column[row] === type && less(column[row], bound);
    }
    const isList = /in$/i.test(sign) && value.startsWith("(");
    const values = (isList ? value.slice(1, -1).match(new RegExp(`${QUOTED}|[^,"']+`, "g")) || [] : [value])
      .map((each) => each.trim()).filter(Boolean).flatMap(readings);
    const isOpposite = /^(!=|\s*not)/i.test(sign);
    return (row) => values.some((each) => isEqual(plain(column[row]), each)) !== isOpposite;
  };

  // Returns a function of the index of a row; `columns` is a Map of names.
  const parse = (text, columns) => {
    const all = [[]]; // of one of these, all comparisons
    COMPARISON.lastIndex = 0;
    for (let next = "and"; next;) {
      const match = COMPARISON.exec(text);
      if (!match) throw new Refused("expected comparisons such as lr<0.1, joined by and, or");
      if (next.toLowerCase() === "or") all.push([]);
      all.at(-1).push(comparison(match.groups, columns));
      next = match.groups.next;
    }
    return (row) => all.some((each) => each.every((test) => test(row)));
  };
  return { parse, Refused };
})();
