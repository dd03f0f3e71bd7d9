package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"holdfast/internal/load"
)

// measurement is the result of one load.
type measurement struct {
	result load.Result
	// processor time by the name of the process, the warm-up included
	cpu  map[string]time.Duration
	took time.Duration // duration of the load, the warm-up included
}

// perRequest divides a processor time by the number of requests, and returns microseconds. It
// assumes that the warm-up had the measured rate.
func (m *measurement) perRequest(used time.Duration) float64 {
	return float64(used.Microseconds()) / (m.result.Rate * m.took.Seconds())
}

// measure puts load on a running system, and measures rate, latency and processor time.
func (d *deployment) measure(ctx context.Context, env *environment, o loadOptions) (*measurement,
	error,
) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	before := d.cpu()
	var output []byte
	stderr := &bytes.Buffer{}
	var loading time.Duration
	if d.raft != "" {
		output, err = post(ctx, d.raft, text)
	} else {
		command := exec.CommandContext(ctx, env.self, "role", "load", "--system", d.kind,
			"--addresses", strings.Join(d.addresses, ","), "--authority", d.authority, "--options",
			string(text))
		command.Stderr = stderr
		output, err = command.Output()
		if command.ProcessState != nil {
			loading = command.ProcessState.UserTime() + command.ProcessState.SystemTime()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load: %w: %s", err, lastLines(stderr.String(), 3))
	}
	if p := d.ended(); p != nil {
		return nil, fmt.Errorf("load: %s has ended", p.name)
	}
	m := &measurement{cpu: map[string]time.Duration{"load": loading}}
	if o.Fill {
		return m, nil
	}
	for name, after := range d.cpu() {
		m.cpu[name] = after - before[name]
	}
	m.took = o.Warmup + o.Duration
	if err := json.Unmarshal(output, &m.result); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	if m.result.Errors+m.result.Unknown > 0 {
		return m, fmt.Errorf("load: %d errors, %d unknown: %s", m.result.Errors, m.result.Unknown,
			lastLines(stderr.String(), 3))
	}
	return m, nil
}

// post returns the body of an answer with status 200. Any other status is an error.
func post(ctx context.Context, url string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // its body has been read
	output, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, output)
	}
	return output, err
}
