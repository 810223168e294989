"""The filter of the page reads comparisons as the command line does."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
SCRIPT = HOME / "runmanager" / "report" / "assets" / "where.js"
CASES = HOME / "tests" / "border" / "where_cases.json"
NODE = shutil.which("node")
PROGRAM = """
const fs = require("fs");
eval(fs.readFileSync(process.argv[1], "utf8").replace("const where =", "globalThis.where ="));
const cases = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const value = (each) => (each && each.number === "nan" ? NaN : each);
const columns = new Map(Object.entries(cases.columns).map(([name, column]) => [name, column.map(value)]));
const run = columns.get("run");
const read = (text) => {
  try {
    const condition = where.parse(text, columns);
    return { runs: run.filter((_, row) => condition(row)) };
  } catch (error) {
    if (!(error instanceof where.Refused)) throw error;
    return { why: error.message };
  }
};
console.log(JSON.stringify(Object.fromEntries(JSON.parse(process.argv[3]).map((text) => [text, read(text)]))));
"""


@pytest.mark.skipif(NODE is None, reason="needs node: apt-get install nodejs")
def test_the_page_chooses_the_same_runs_or_explains_why_it_cannot():
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    chosen, refused = {**dict(cases["chosen"]), "lr<0.1 and status=failed": [2]}, dict(cases["refused"])

    command = [str(NODE), "-e", PROGRAM, str(SCRIPT), str(CASES), json.dumps([*chosen, *refused])]
    answers = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)

    assert {where: answers[where].get("runs") for where in chosen} == chosen
    assert all(problem in answers[where]["why"] for where, problem in refused.items())
