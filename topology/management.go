package topology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spillway-mq/spillway/retry"
)

var (
	// errNoObject is the management API's 404.
	errNoObject = errors.New("object not found")
	// errRefused is the management API's 401 and 403.
	errRefused = errors.New("refused")
)

// management reads the broker's HTTP API.
type management struct {
	base     string // without user info, so that errors show no password
	user     *url.Userinfo
	vhost    string
	client   *http.Client
	idleFunc func()
}

// newManagement checks the address. The caller calls close when done.
func newManagement(address, vhost string) (*management, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		// The address may hold a password, and one that does not parse cannot
		// be masked part by part.
		return nil, retry.NewFieldError("management url", "(hidden)", "http(s)://user:password@host:port")
	}
	m := &management{user: u.User, vhost: vhost}
	m.base = (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimSuffix(u.Path, "/")}).String()
	transport := http.DefaultTransport.(*http.Transport).Clone() // own pool, closed by close
	m.client = &http.Client{Transport: transport}
	m.idleFunc = transport.CloseIdleConnections
	return m, nil
}

func (m *management) close() { m.idleFunc() }

// get reads GET /api/<parts…> into out, in which parts are escaped. A 404 is
// errNoObject.
func (m *management) get(ctx context.Context, out any, parts ...string) error {
	address := m.base + "/api"
	for _, p := range parts {
		address += "/" + url.PathEscape(p)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("management api: %w", err)
	}
	if m.user != nil {
		password, _ := m.user.Password()
		req.SetBasicAuth(m.user.Username(), password)
	}
	resp, err := m.client.Do(req)
	if err != nil {
		return fmt.Errorf("management api: %w", err)
	}
	defer func() {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // so that the connection is used again
		_ = resp.Body.Close()
	}()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return fmt.Errorf("management api: GET %s: %w", address, errNoObject)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("management api: GET %s: %w (%s): user %q needs the right password, the tag management and access to the virtual host %q",
			address, errRefused, resp.Status, m.user.Username(), m.vhost)
	default:
		return fmt.Errorf("management api: GET %s: %s", address, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("management api: GET %s: answer: %w", address, err)
	}
	return nil
}

// object decodes a JSON object of which the broker writes [] when empty.
type object map[string]any

func (o *object) UnmarshalJSON(data []byte) error {
	if strings.HasPrefix(string(data), "[") {
		*o = nil
		return nil
	}
	var m map[string]any
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber() // large numbers print as they are
	if err := d.Decode(&m); err != nil {
		return err
	}
	*o = m
	return nil
}

// What the API says of each, as far as it matters here.
type (
	apiExchange struct {
		Type       string `json:"type"`
		Durable    bool   `json:"durable"`
		AutoDelete bool   `json:"auto_delete"`
		Internal   bool   `json:"internal"`
		Arguments  object `json:"arguments"`
	}
	apiQueue struct {
		Durable    bool   `json:"durable"`
		AutoDelete bool   `json:"auto_delete"`
		Exclusive  bool   `json:"exclusive"`
		Arguments  object `json:"arguments"`
	}
	apiBinding struct {
		Source          string `json:"source"`
		Destination     string `json:"destination"`
		DestinationType string `json:"destination_type"`
		RoutingKey      string `json:"routing_key"`
		Arguments       object `json:"arguments"`
	}
	apiPolicy struct {
		Name       string `json:"name"`
		Pattern    string `json:"pattern"`
		ApplyTo    string `json:"apply-to"`
		Priority   int    `json:"priority"`
		Definition object `json:"definition"`
	}
	apiFlag struct {
		Name  string `json:"name"`
		State string `json:"state"`
	}
	apiOverview struct {
		ClusterName string `json:"cluster_name"`
	}
)
