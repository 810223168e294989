"""The filter of the page reads the same conditions as the command line."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from runmanager.outcome import Status

HOME = Path(__file__).parents[2]
SCRIPT = HOME / "runmanager" / "report" / "assets" / "where.js"
CASES = HOME / "tests" / "results" / "where_cases.json"
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
    return { why: error.message, marked: `${text} `.slice(error.begin, error.end) };
  }
};
const texts = [...cases.chosen, ...cases.refused].map(([text]) => text);
console.log(JSON.stringify(Object.fromEntries(texts.map((text) => [text, read(text)]))));
"""


@pytest.fixture(scope="module")
def answers():
    if NODE is None:
        pytest.skip("needs node: apt-get install nodejs")
    command = [NODE, "-e", PROGRAM, str(SCRIPT), str(CASES)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


def test_the_page_chooses_the_same_runs(answers):
    chosen = json.loads(CASES.read_text(encoding="utf-8"))["chosen"]

    assert {where: answers[where] for where, _ in chosen} == {where: {"runs": runs} for where, runs in chosen}


def test_the_page_refuses_the_same_and_marks_the_same(answers):
    for where, problem, marked in json.loads(CASES.read_text(encoding="utf-8"))["refused"]:
        answer = answers[where]
        assert answer.get("marked") == marked, where
        assert problem.split("; ")[0].split(", as ")[0] in answer["why"], where


def test_the_page_knows_every_status():
    content = SCRIPT.read_text(encoding="utf-8")
    listed = content[content.index("STATUSES = [") : content.index("];", content.index("STATUSES = ["))]

    assert listed.split('"')[1::2] == [str(status) for status in Status]
