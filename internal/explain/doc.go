// Package explain checks a task's journal: it makes every recorded decision again, from the recorded facts and the version of
// the rules that is named, and looks whether the rows fit each other and the task. It reads nothing by itself and knows no
// clock, so the same journal always gives the same report.
package explain
