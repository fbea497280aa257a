package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// An attempt is one way to reach a broker over TLS: with a mechanism and a password, or with a certificate.
type attempt struct {
	Name, Bootstrap, Topic, Ca, Mechanism, User, Password, Certificate string
}

// logins tries every attempt of a file, and prints for each what the client says.
func logins(ctx context.Context, c *call) error {
	text, err := os.ReadFile(c.from)
	if err != nil {
		return err
	}
	var attempts []attempt
	if err := json.Unmarshal(text, &attempts); err != nil {
		return err
	}
	for _, each := range attempts {
		line := map[string]string{"name": each.Name, "error": ""}
		if err := each.try(ctx); err != nil {
			line["error"] = err.Error()
		}
		if err := emit(line); err != nil {
			return err
		}
	}
	return nil
}

func (a attempt) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	options, err := a.options()
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	return client.ProduceSync(ctx, &kgo.Record{Topic: a.Topic, Value: []byte(a.Name)}).FirstErr()
}

func (a attempt) options() ([]kgo.Opt, error) {
	authorities := x509.NewCertPool()
	text, err := os.ReadFile(a.Ca)
	if err != nil {
		return nil, err
	}
	if !authorities.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", a.Ca)
	}
	config := &tls.Config{RootCAs: authorities}
	if a.Certificate != "" {
		own, err := tls.LoadX509KeyPair(a.Certificate, a.Certificate)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	options := []kgo.Opt{kgo.SeedBrokers(a.Bootstrap), kgo.DialTLSConfig(config), kgo.RetryTimeout(10 * time.Second)}
	if a.Mechanism != "" {
		options = append(options, kgo.SASL(a.mechanism()))
	}
	return options, nil
}

func (a attempt) mechanism() sasl.Mechanism {
	switch a.Mechanism {
	case "SCRAM-SHA-256":
		return scram.Auth{User: a.User, Pass: a.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: a.User, Pass: a.Password}.AsSha512Mechanism()
	default:
		return plain.Auth{User: a.User, Pass: a.Password}.AsMechanism()
	}
}
