package retry

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of names and payloads.
const (
	// MaxServiceLen is the longest service name in bytes.
	MaxServiceLen = 63
	// MaxSceneLen is the longest scene name in bytes.
	MaxSceneLen = 127
	// MaxKeyLen is the longest key in bytes.
	MaxKeyLen = 255
	// DefaultMaxPayload is the default limit of a task's arguments in bytes.
	DefaultMaxPayload = 1 << 20
)

var (
	serviceName = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	sceneName   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,126}$`)
)

// FieldError says which field of a user's input is wrong, what it was and what
// is allowed. It is ErrInvalid to errors.Is.
type FieldError struct {
	Field   string // such as "scene" or "policy.max_attempts"
	Value   string // the offending value, cut to a readable length
	Allowed string // what would be accepted
}

// Error implements error.
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s is not allowed: must be %s", e.Field, e.Value, e.Allowed)
}

// Is makes every FieldError an ErrInvalid.
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

// NewFieldError returns a FieldError for value, which is quoted and cut to at
// most 80 bytes so that an error about a huge value stays readable.
func NewFieldError(field string, value any, allowed string) *FieldError {
	var v string
	switch x := value.(type) {
	case string:
		v = fmt.Sprintf("%q", CutString(x, 80))
	default:
		v = CutString(fmt.Sprint(x), 80)
	}
	return &FieldError{Field: field, Value: v, Allowed: allowed}
}

// CheckService returns a *FieldError unless name is a service name:
// 1 to 63 of a-z, 0-9 and '-'.
func CheckService(name string) error {
	if !serviceName.MatchString(name) {
		return NewFieldError("service", name, "1 to 63 characters of a-z, 0-9 and -")
	}
	return nil
}

// CheckScene returns a *FieldError unless name is a scene name: 1 to 127 of
// a-z, 0-9, '.', '_' and '-', beginning with a letter or digit.
func CheckScene(name string) error {
	if !sceneName.MatchString(name) {
		return NewFieldError("scene", name, "1 to 127 characters of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit")
	}
	return nil
}

// CheckKey returns a *FieldError unless key is an idempotency key: 1 to 255
// bytes of UTF-8 without control characters.
func CheckKey(key string) error {
	ok := len(key) >= 1 && len(key) <= MaxKeyLen && utf8.ValidString(key) &&
		strings.IndexFunc(key, unicode.IsControl) < 0
	if !ok {
		return NewFieldError("key", key, "1 to 255 bytes of UTF-8 without control characters")
	}
	return nil
}

// CutString cuts s to at most limit bytes, never inside a rune, and marks the
// cut by "…[cut, N bytes]", which comes on top of limit. A limit below zero
// counts as zero. Bytes that are not UTF-8 are replaced and NUL is removed,
// because Postgres stores neither.
func CutString(s string, limit int) string {
	if limit < 0 {
		limit = 0
	}
	whole := len(s)
	cut := whole > limit
	if cut {
		s = s[:limit]
		// Step back over a rune that the cut went through.
		for i := 0; i < utf8.UTFMax && len(s) > 0; i++ {
			if r, size := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || size > 1 {
				break
			}
			s = s[:len(s)-1]
		}
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
	if cut {
		s += fmt.Sprintf("…[cut, %d bytes]", whole)
	}
	return s
}
