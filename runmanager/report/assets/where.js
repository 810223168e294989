"use strict";
// Conditions such as `lr<0.1 and status=failed`, as runmanager/results/where.py reads them.
// A column is an array of values; {text: "(1, 2)"} is a value that is compared as it is written.
const where = (() => {
  const BLANK = "\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
  const TOKEN = new RegExp(
    `[${BLANK}]*(?:(?<text>"(?:[^"\\\\]|\\\\.)*"|'(?:[^'\\\\]|\\\\.)*')`
    + `|(?<sign><=|>=|!=|==|[=<>(),])|(?<word>[^${BLANK}"'(),<=>!]+))`, "ysu");
  const NUMBER = /^(?:[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf)$/;
  const KEYWORDS = ["and", "or", "not", "in"];
  const STATUSES = ["completed", "failed", "diverged", "out of memory", "hung", "killed", "interrupted", "pruned",
    "unavailable", "pending", "running", "stale"];
  const CONSTANTS = new Map([["true", true], ["false", false], ["none", null], ["nan", NaN]]);
  const DEEPEST = 50;
  const compare = (a, b) => {
    if (typeof a === "number") return a < b ? -1 : a > b ? 1 : a === b ? 0 : NaN;
    const [x, y] = [[...a], [...b]]; // letter by letter: a letter may be two units of a string
    for (let n = 0; n < Math.min(x.length, y.length); n += 1) {
      if (x[n] !== y[n]) return x[n].codePointAt(0) - y[n].codePointAt(0);
    }
    return x.length - y.length;
  };
  const ORDER = { "<": (a, b) => compare(a, b) < 0, "<=": (a, b) => compare(a, b) <= 0,
    ">": (a, b) => compare(a, b) > 0, ">=": (a, b) => compare(a, b) >= 0 };
  const isOrder = (sign) => Object.hasOwn(ORDER, sign);

  class Refused extends Error {
    constructor(why, begin, end) {
      super(why);
      [this.begin, this.end] = [begin, end];
    }
  }

  const asNumber = (word) => {
    if (!NUMBER.test(word)) return null;
    return /inf$/.test(word) ? (word[0] === "-" ? -Infinity : Infinity) : Number(word);
  };
  const isMissing = (value) => Number.isNaN(value);
  const kind = (value) => (
    typeof value === "boolean" ? "booleans" : typeof value === "number" ? "numbers"
      : typeof value === "string" ? "text" : "other values");
  const written = (value) => (
    value === null ? "None" : typeof value === "boolean" ? (value ? "True" : "False")
      : typeof value === "object" ? value.text : String(value));
  const isEqual = (value, given) => {
    if (given === null) return value === null;
    if (isMissing(given)) return isMissing(value);
    if (typeof given === "string") {
      return !isMissing(value) && ["text", "other values"].includes(kind(value)) && written(value) === given;
    }
    return kind(value) === kind(given) && value === given;
  };
  const isOrdered = (value, given, sign) => (
    ["numbers", "text"].includes(kind(value)) && kind(value) === kind(given)
    && !isMissing(value) && ORDER[sign](value, given));

  const split = (text) => {
    const tokens = [];
    const blank = new RegExp(`[${BLANK}]*`, "yu");
    let offset = 0;
    for (;;) {
      blank.lastIndex = offset;
      blank.exec(text);
      const begin = blank.lastIndex;
      if (begin >= text.length) break;
      TOKEN.lastIndex = offset;
      const match = TOKEN.exec(text);
      if (!match) {
        const sign = String.fromCodePoint(text.codePointAt(begin));
        throw new Refused("'\"".includes(sign) ? "this quote is not closed" : `unexpected '${sign}'`, begin, begin + 1);
      }
      offset = TOKEN.lastIndex;
      const name = Object.keys(match.groups).find((group) => match.groups[group] !== undefined);
      const content = match.groups[name];
      const plain = name === "text" ? content.slice(1, -1).replace(/\\(.)/gsu, "$1") : content;
      tokens.push({ kind: name, content: plain, begin, end: offset });
    }
    tokens.push({ kind: "end", content: "", begin: text.length, end: text.length + 1 });
    return tokens;
  };

  const isWord = (token, ...words) => token.kind === "word" && words.includes(token.content.toLowerCase());
  const readings = (token) => {
    if (token.kind === "text") return [token.content];
    const small = token.content.toLowerCase();
    if (CONSTANTS.has(small)) return [token.content, CONSTANTS.get(small)];
    const number = asNumber(token.content);
    return number === null ? [token.content] : [token.content, number];
  };

  // Returns a function of the index of a row; `columns` is a Map of names.
  const parse = (text, columns) => {
    const tokens = split(text);
    let index = 0;
    let depth = 0;
    const next = () => tokens[index];
    const refuse = (token, why) => { throw new Refused(why, token.begin, token.end); };
    const take = () => {
      const token = next();
      index += token.kind === "end" ? 0 : 1;
      return token;
    };
    const accept = (...signs) => (next().kind === "sign" && signs.includes(next().content) ? take() : null);

    const refuseWords = (first, names, what) => {
      const words = [first];
      for (const token of tokens.slice(index)) {
        if (first.kind !== "word" || token.kind !== "word" || isWord(token, ...KEYWORDS)) break;
        words.push(token);
        const several = words.map((each) => each.content).join(" ");
        if (names.includes(several)) {
          throw new Refused(`a ${what} of several words is written in quotes: "${several}"`, first.begin, token.end);
        }
      }
    };
    const several = (word, read) => {
      const conditions = [read()];
      while (isWord(next(), word)) {
        take();
        conditions.push(read());
      }
      if (conditions.length === 1) return conditions[0];
      return word === "or" ? (row) => conditions.some((each) => each(row))
        : (row) => conditions.every((each) => each(row));
    };
    const condition = () => several("or", () => several("and", one));
    const one = () => {
      depth += 1;
      if (depth > DEEPEST) refuse(next(), `more than ${DEEPEST} parentheses are open`);
      let result;
      const opened = isWord(next(), "not") ? null : accept("(");
      if (isWord(next(), "not") && !opened) {
        take();
        const inner = one();
        result = (row) => !inner(row);
      } else if (opened) {
        result = condition();
        if (!accept(")")) {
          if (next().kind === "end") refuse(opened, "this parenthesis is not closed");
          refuse(next(), "expected 'and', 'or' or ')'");
        }
      } else result = comparison();
      depth -= 1;
      return result;
    };
    const comparison = () => {
      const name = nameOf();
      const isOpposite = isWord(next(), "not");
      if (isOpposite) take();
      if (isWord(next(), "in")) {
        take();
        const inner = compared(name, "=", list(name));
        return isOpposite ? (row) => !inner(row) : inner;
      }
      const operator = isOpposite ? null : accept("<", "<=", ">", ">=", "=", "==", "!=");
      if (!operator) refuse(next(), `expected 'in', =, !=, <, <=, > or >= after '${name.content}'`);
      const inner = compared(name, operator.content, [valueOf(name, operator.content)]);
      return operator.content === "!=" ? (row) => !inner(row) : inner;
    };
    const compared = (name, operator, values) => {
      const given = values.flatMap(readings);
      const column = columns.get(name.content);
      if (isOrder(operator)) {
        const number = given.find((each) => kind(each) === "numbers");
        const bound = number === undefined ? values[0].content : number;
        return (row) => isOrdered(column[row], bound, operator);
      }
      return (row) => given.some((each) => isEqual(column[row], each));
    };
    const nameOf = () => {
      const name = take();
      if (!["word", "text"].includes(name.kind) || isWord(name, ...KEYWORDS)) {
        refuse(name, "expected the name of a column");
      }
      if (columns.has(name.content)) return name;
      refuseWords(name, [...columns.keys()], "name");
      if (asNumber(name.content) !== null) refuse(name, "a comparison begins with the name of a column, as lr<0.1");
      return refuse(name, `these runs have no column '${name.content}'; they have: ${[...columns.keys()].join(", ")}`);
    };
    const list = (name) => {
      if (!accept("(")) refuse(next(), `expected '(' and values, as ${name.content} in (1, 2)`);
      const values = [valueOf(name, "=")];
      while (accept(",")) values.push(valueOf(name, "="));
      if (!accept(")")) refuse(next(), "expected ',' or ')'");
      return values;
    };
    const valueOf = (name, operator) => {
      const value = take();
      if (!["word", "text"].includes(value.kind) || isWord(value, ...KEYWORDS)) {
        refuse(value, `expected a value${value.kind === "word" ? "; this word is written in quotes" : ""}`);
      }
      const column = columns.get(name.content);
      refuseWords(value, [...STATUSES, ...new Set(column.map(written))], "value");
      check(name, operator, value, column);
      return value;
    };
    // refuses a value of a type that its column does not have
    const check = (name, operator, value, column) => {
      const present = column.filter((each) => !isMissing(each) && each !== null);
      if (name.content === "status" && !isOrder(operator)
        && ![...STATUSES, ...present].includes(value.content)) {
        refuse(value, `no status is '${value.content}'; the statuses are: ${STATUSES.join(", ")}`);
      }
      if (!present.length || (isWord(value, "none", "nan") && !isOrder(operator))) return;
      const kinds = new Set(present.map(kind));
      const given = readings(value).map(kind);
      let fits;
      if (isOrder(operator)) {
        fits = given.some((each) => kinds.has(each) && ["numbers", "text"].includes(each));
        if (kinds.size === 1 && kinds.has("text") && given.length > 1) fits = false; // a number
      } else {
        fits = kinds.has("text") || kinds.has("other values") || given.some((each) => kinds.has(each));
      }
      if (!fits) {
        const examples = [...new Set(present.map(written))];
        const more = examples.length > 3 ? ", ..." : "";
        const rule = value.kind === "text" ? "; what is in quotes is text" : "";
        refuse(value, `column '${name.content}' holds ${[...kinds].sort().join(" and ")}, as `
          + `${examples.slice(0, 3).join(", ")}${more}${rule}`);
      }
    };
    const result = condition();
    if (next().kind !== "end") {
      refuse(next(), "expected 'and', 'or' or the end; several words are written in quotes");
    }
    return result;
  };
  return { parse, Refused };
})();
