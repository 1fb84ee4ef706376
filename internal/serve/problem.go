package serve

import (
	"fmt"
	"strings"

	"github.com/spillway-mq/spillway/retry"
)

// Problem is one thing that is wrong in a scenes file.
type Problem struct {
	Line, Col int    // counted from 1; 0 where the problem has no place
	Field     string // such as scenes[0].policy.base
	Value     string // what is there, quoted and cut
	Allowed   string
}

// FileError holds everything that is wrong in a scenes file. It is retry.ErrInvalid to errors.Is.
type FileError struct {
	Path     string
	Problems []Problem // in the order of the file
}

// Error implements error, with a line for each problem: file:line:col: field: value: must be …
func (e *FileError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		at := e.Path
		if p.Line > 0 {
			at = fmt.Sprintf("%s:%d:%d", e.Path, p.Line, p.Col)
		}
		lines[i] = fmt.Sprintf("%s: %s: %s: must be %s", at, p.Field, p.Value, p.Allowed)
	}
	return strings.Join(lines, "\n")
}

// Is makes every FileError a retry.ErrInvalid.
func (e *FileError) Is(target error) bool { return target == retry.ErrInvalid }
