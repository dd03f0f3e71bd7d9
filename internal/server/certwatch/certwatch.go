// Package certwatch knows until when the certificates of a node are valid, and says so in time.
//
//	watch := certwatch.New([]certwatch.File{{Name: "cluster.tls.certFile", Path: "n1.crt"}}, time.Now)
//	registry.MustRegister(watch) // holdfast_certificate_expiry_seconds
//	watch.Notes()                // for /readyz
//	watch.Run(ctx, log)          // logs each day what expires soon
package certwatch

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/pki"
)

// File is a file with certificates that a node uses.
type File struct {
	Name        string // the setting that names it
	Path        string
	CA          string // file of the authorities by which others verify it; empty: not known here
	Authorities bool   // it has those who vouch for others: one that is valid is enough
}

// end returns until when what is in the file is good.
func (f *File) end(now time.Time) (end time.Time, err error) {
	if !f.Authorities {
		return pki.ValidUntil(f.Path, f.CA, now)
	}
	certificates, err := pki.Read(f.Path)
	for _, certificate := range certificates {
		if certificate.NotAfter.After(end) {
			end = certificate.NotAfter
		}
	}
	return end, err
}

// Watch looks at the files whenever it is asked, so that it sees renewed ones. Its methods are safe
// for concurrent use.
type Watch struct {
	files []File
	now   func() time.Time

	mu     sync.Mutex
	broker time.Time // until when the broker's own certificate is valid; zero until it was shown
}

// Soon is how long before its end a certificate is worth a note.
const Soon = 14 * 24 * time.Hour

// New returns a Watch. Files without a path are left out.
func New(files []File, now func() time.Time) *Watch {
	w := &Watch{now: now}
	for _, file := range files {
		if file.Path != "" {
			w.files = append(w.files, file)
		}
	}
	return w
}

// ObserveBroker makes each connection to the broker with a configuration note until when the
// broker's certificate is valid.
func (w *Watch) ObserveBroker(config *tls.Config) {
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) > 0 {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.broker = state.PeerCertificates[0].NotAfter
		}
		return nil
	}
}

// end is until when the certificates under a name are valid.
type end struct {
	name string
	at   time.Time
	err  error // the file cannot be used
	ours bool  // others look at it, and not this node
}

func (w *Watch) ends() (ends []end) {
	for i := range w.files {
		e := end{name: w.files[i].Name, ours: !w.files[i].Authorities}
		e.at, e.err = w.files[i].end(w.now())
		ends = append(ends, e)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.broker.IsZero() {
		ends = append(ends, end{name: broker, at: w.broker})
	}
	return ends
}

// broker is the name of the broker's own certificate.
const broker = "broker"

// note returns what is to be said of a certificate; empty if it is good for long.
func (e *end) note(now time.Time) string {
	const day = 24 * time.Hour
	left := e.at.Sub(now)
	switch {
	case e.err != nil:
		return fmt.Sprintf("%s: %v", e.name, e.err)
	case left <= 0:
		effect := "this node refuses what it vouches for"
		if e.ours {
			effect = "the others refuse it"
		} else if e.name == broker {
			effect = "this node refuses it"
		}
		return fmt.Sprintf("the certificate of %s expired at %s: %s", e.name,
			e.at.UTC().Format(time.RFC3339), effect)
	case left < Soon:
		return fmt.Sprintf("the certificate of %s expires in %d days, at %s: renew it", e.name,
			left/day, e.at.UTC().Format(time.RFC3339))
	default:
		return ""
	}
}

// Notes returns what an operator has to know: what expires within Soon, has expired, or cannot be
// read.
func (w *Watch) Notes() (notes []string) {
	now := w.now()
	for _, e := range w.ends() {
		if note := e.note(now); note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

// Run logs the notes, each at most once a day, until the context ends.
func (w *Watch) Run(ctx context.Context, log *slog.Logger) {
	const (
		often = time.Hour
		day   = 24 * time.Hour
	)
	ticker := time.NewTicker(often)
	defer ticker.Stop()
	logged := make(map[string]time.Time) // by name
	for {
		now := w.now()
		for _, e := range w.ends() {
			if note := e.note(now); note == "" {
				delete(logged, e.name)
			} else if last, ok := logged[e.name]; !ok || now.Sub(last) >= day {
				logged[e.name] = now
				log.Warn(note)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func description() *prometheus.Desc {
	return prometheus.NewDesc("holdfast_certificate_expiry_seconds",
		"For how long the certificate of a setting is valid, with those that vouch for it, negative when it is not any more; of a file of authorities, the one that is valid for longest. broker is the certificate that the broker showed last.",
		[]string{"certificate"}, nil)
}

// Describe implements prometheus.Collector.
func (w *Watch) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- description() }

// Collect implements prometheus.Collector.
func (w *Watch) Collect(values chan<- prometheus.Metric) {
	now := w.now()
	for _, e := range w.ends() {
		if e.err == nil {
			values <- prometheus.MustNewConstMetric(description(), prometheus.GaugeValue,
				e.at.Sub(now).Seconds(), e.name)
		}
	}
}
