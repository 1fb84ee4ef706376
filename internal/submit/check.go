package submit

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spillway-mq/spillway/retry"
)

// maxHeaders bounds the names and values of a task's headers, in bytes.
const maxHeaders = 16 << 10

// CheckWorkflow returns a *retry.FieldError unless name can be a workflow's.
func CheckWorkflow(name string) error {
	if name == "" || !plain(name, retry.MaxKeyLen) {
		return retry.NewFieldError("workflow", name, "at most 255 bytes of UTF-8 without control characters")
	}
	return nil
}

// CheckHeaders returns every *retry.FieldError of a task's headers joined, or nil.
func CheckHeaders(headers map[string]string) error {
	var errs []error
	size := 0
	for name, value := range headers {
		size += len(name) + len(value)
		if name == "" || !plain(name, 255) {
			errs = append(errs, retry.NewFieldError("headers", name, "a name of 1 to 255 bytes of UTF-8 without control characters"))
		}
		// NUL is valid UTF-8, but jsonb does not take it.
		if !storable(value) {
			errs = append(errs, retry.NewFieldError("headers["+retry.CutString(name, 80)+"]", value, "UTF-8 without NUL"))
		}
	}
	if size > maxHeaders {
		errs = append(errs, retry.NewFieldError("headers", fmt.Sprintf("%d bytes", size), fmt.Sprintf("at most %d bytes, names and values together", maxHeaders)))
	}
	return errors.Join(errs...)
}

func plain(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
