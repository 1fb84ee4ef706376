package amqpconn

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/retry"
)

// tlsConfig is that of a dial: given, or made of the files that the URL names. They are read
// for each dial, so that certificates can be replaced while the process runs. It returns nil
// for amqp:// and a *retry.FieldError for files that do not do.
//
// The client library could read them too, but takes a file without a certificate for an empty
// list of authorities, and one of two files for none.
func tlsConfig(uri amqp.URI, given *tls.Config) (*tls.Config, error) {
	named := uri.CACertFile + uri.CertFile + uri.ServerName
	switch {
	case uri.Scheme != "amqps":
		return nil, nil
	case given != nil && named != "":
		return nil, retry.NewFieldError("amqp tls", "set", "nil where the amqp url has cacertfile, certfile or server_name_indication")
	case given != nil:
		return given.Clone(), nil // the library writes into it
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: uri.ServerName}
	if uri.CACertFile != "" {
		pem, err := os.ReadFile(uri.CACertFile)
		if err != nil {
			return nil, fileError("cacertfile", uri.CACertFile, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, retry.NewFieldError("amqp cacertfile", uri.CACertFile, "a file with certificates in PEM form")
		}
	}
	if uri.CertFile != "" {
		for name, file := range map[string]string{"certfile": uri.CertFile, "keyfile": uri.KeyFile} {
			if _, err := os.ReadFile(file); err != nil {
				return nil, fileError(name, file, err)
			}
		}
		pair, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
		if err != nil {
			return nil, retry.NewFieldError("amqp certfile", uri.CertFile, fmt.Sprintf("a certificate in PEM form whose key is in keyfile %s (%v)", uri.KeyFile, err))
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

func fileError(name, file string, err error) error {
	return retry.NewFieldError("amqp "+name, file, fmt.Sprintf("a file that can be read (%v)", err))
}
