package amqpconn_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/testenv"
)

// authority makes certificates, in files that the broker's user can read.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "spillway-test-tls-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, dir: dir}
	a.issue(name, true)
	return a
}

// issue writes name.pem and name.key; the authority itself comes first.
func (a *authority) issue(name string, isCA bool) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, IsCA: isCA,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if isCA {
		c.KeyUsage |= x509.KeyUsageCertSign
		parent, signer = c, key
		a.cert, a.key = c, key
	} else {
		c.DNSNames, c.IPAddresses = []string{name}, []net.IP{net.IPv4(127, 0, 0, 1)}
		if name == "elsewhere.test" {
			c.IPAddresses = nil
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for ext, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(a.file(name+ext), pem.EncodeToMemory(block), 0o644); err != nil {
			a.t.Fatal(err)
		}
	}
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func TestTLS(t *testing.T) {
	ca, stranger := newAuthority(t, "ca"), newAuthority(t, "stranger")
	ca.issue("elsewhere.test", false)
	ca.issue("spillway", false) // the client's; EXTERNAL takes its name for the user's
	stranger.issue("spillway", false)
	port := testenv.FreePort(t)
	server := testenv.NewServer(t, testenv.ServerConfig{
		Plugins: []string{"rabbitmq_auth_mechanism_ssl"},
		Conf: fmt.Sprintf(`listeners.ssl.local = 127.0.0.1:%d
ssl_options.cacertfile = %s
ssl_options.certfile = %s
ssl_options.keyfile = %s
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
`, port, ca.file("ca.pem"), ca.file("elsewhere.test.pem"), ca.file("elsewhere.test.key")),
	})
	at := func(user, password string, query url.Values) string {
		u := url.URL{Scheme: "amqps", Host: fmt.Sprintf("127.0.0.1:%d", port), Path: "/", RawQuery: query.Encode()}
		if user != "" {
			u.User = url.UserPassword(user, password)
		}
		return u.String()
	}
	plain, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	user := plain.User.Username()
	password, _ := plain.User.Password()
	good := func() url.Values {
		return url.Values{"cacertfile": {ca.file("ca.pem")}, "certfile": {ca.file("spillway.pem")}, "keyfile": {ca.file("spillway.key")}, "server_name_indication": {"elsewhere.test"}}
	}
	t.Run("certificate and password", func(t *testing.T) {
		works(t, session(t, open(t, amqpconn.Config{URL: at(user, password, good())})))
	})
	t.Run("certificate alone", func(t *testing.T) {
		q := good()
		q.Set("auth_mechanism", "external")
		works(t, session(t, open(t, amqpconn.Config{URL: at("", "", q)})))
	})
	for name, change := range map[string]func(url.Values){
		"private authority unknown": func(q url.Values) { q.Del("cacertfile") },
		"other authority":           func(q url.Values) { q.Set("cacertfile", stranger.file("stranger.pem")) },
		"other name":                func(q url.Values) { q.Del("server_name_indication") },
		"no client certificate":     func(q url.Values) { q.Del("certfile"); q.Del("keyfile") },
		"a stranger's certificate": func(q url.Values) {
			q.Set("certfile", stranger.file("spillway.pem"))
			q.Set("keyfile", stranger.file("spillway.key"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := good()
			change(q)
			c := open(t, amqpconn.Config{URL: at(user, password, q)})
			testenv.Eventually(t, 30*time.Second, func() bool { return c.State().LastError != nil }, "the dial fails")
			st := c.State()
			t.Log(st.LastError)
			ours := name == "no client certificate" || name == "a stranger's certificate" // its word may get lost
			if !st.Permanent && !ours || !strings.Contains(st.LastError.Error(), "check the certificates") || strings.Contains(st.LastError.Error(), password+"@") {
				t.Errorf("permanent %v: %v", st.Permanent, st.LastError)
			}
		})
	}
}
