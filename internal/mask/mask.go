// Package mask hides passwords before a text is shown, logged or stored.
package mask

import (
	"regexp"
	"strings"
)

// Shown stands where a password was.
const Shown = "***"

var (
	// The user is what can precede the password; the password goes on to the last @ of the word, because a password
	// that somebody forgot to encode can hold any of : / # @ itself.
	userInfo = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*://[^:@/?#\s]*):(.*)@`)
	// user:password without a host behind it. Digits alone are a port.
	noHost = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*://[^:@/?#\s\[\]]+):([^@/?#\s]*[^@/?#\s0-9][^@/?#\s]*)`)
	// password=… as in a key=value DSN or a URL's query. Quoted values may hold spaces and escaped quotes.
	pair  = regexp.MustCompile(`(?i)((?:password|passwd|secret|token)\s*=\s*)('(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|[^\s&;,'"]+)`)
	words = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://\S+`)
)

// URL returns the URL or key=value DSN with its password replaced. What cannot be parsed is masked as well as can be
// told: rather too much than too little.
func URL(s string) string {
	if strings.Contains(s, "://") {
		if m := userInfo.FindStringSubmatchIndex(s); m != nil {
			s = s[:m[3]] + ":" + Shown + s[m[1]-1:]
		} else {
			s = noHost.ReplaceAllString(s, "${1}:"+Shown)
		}
	}
	return pair.ReplaceAllString(s, "${1}"+Shown)
}

// Text masks the passwords of all URLs and key=value pairs within a text, such as an error's.
func Text(s string) string {
	return pair.ReplaceAllString(words.ReplaceAllStringFunc(s, URL), "${1}"+Shown)
}
