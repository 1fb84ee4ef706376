package mask

import (
	"strings"
	"testing"
)

func TestURL(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "",
		"postgres://u:hunter2@h:5432/db": "postgres://u:***@h:5432/db",
		"amqp://u:hun/ter2#@h:5672/v":    "amqp://u:***@h:5672/v",
		"amqp://u:hun@ter2@h/":           "amqp://u:***@h/",
		"amqp://:hunter2@h/":             "amqp://:***@h/",
		"amqp://u:@h/":                   "amqp://u:***@h/",
		"amqp://u@h:5672/":               "amqp://u@h:5672/",
		"amqp://h:5672/vhost":            "amqp://h:5672/vhost",
		"amqp://[::1]:5672/":             "amqp://[::1]:5672/",
		"amqp://u:hunter2":               "amqp://u:***",
		"postgres://h/db?password=hunter2&sslmode=disable": "postgres://h/db?password=***&sslmode=disable",
		"host=h user=u password=hunter2 dbname=d":          "host=h user=u password=*** dbname=d",
		`host=h password = 'hun ter\'2' dbname=d`:          "host=h password = *** dbname=d",
		"host=h sslpassword=hunter2":                       "host=h sslpassword=***",
		"host=h PASSWORD=hunter2":                          "host=h PASSWORD=***",
	} {
		got := URL(in)
		if got != want {
			t.Errorf("URL(%q) = %q, want %q", in, got, want)
		}
		if strings.Contains(got, "hun") {
			t.Errorf("URL(%q) = %q leaks", in, got)
		}
	}
}

func TestText(t *testing.T) {
	in := `dial amqp://u:hunter2@h:1/: parse "postgres://u:hunter2@h:port/db": invalid port; dsn host=h password=hunter2 dbname=d`
	got := Text(in)
	want := `dial amqp://u:***@h:1/: parse "postgres://u:***@h:port/db": invalid port; dsn host=h password=*** dbname=d`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, plain := range []string{"", "nothing here", "status 503 at http://127.0.0.1:80/x"} {
		if got := Text(plain); got != plain {
			t.Errorf("Text(%q) = %q", plain, got)
		}
	}
}
