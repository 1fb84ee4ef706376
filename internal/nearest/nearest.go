// Package nearest finds the known name that a mistyped one was meant to be.
package nearest

import "strings"

// Name returns the candidate with the fewest edits (insert, delete, replace,
// swap of neighbours) from name, or "" where none is near: at most a third of the
// longer name, at least one edit, may differ. Case does not count. The first of equals wins.
func Name(name string, candidates []string) string {
	best, bestEdits := "", 0
	for _, c := range candidates {
		n := edits(strings.ToLower(name), strings.ToLower(c))
		if n <= max(1, max(len(name), len(c))/3) && (best == "" || n < bestEdits) {
			best, bestEdits = c, n
		}
	}
	return best
}

// Hint is "" or a question that names what was meant, to append to an error.
func Hint(name string, candidates []string) string {
	if best := Name(name, candidates); best != "" {
		return ` (did you mean "` + best + `"?)`
	}
	return ""
}

// edits is the optimal string alignment distance of a and b, in bytes.
func edits(a, b string) int {
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
