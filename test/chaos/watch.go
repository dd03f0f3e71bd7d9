package main

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/test/chaos/record"
)

// watch reads the metrics of all machines, and restarts machines and the broker when they have
// ended by themselves, until the context ends.
func (w *world) watch(ctx context.Context) {
	var watching sync.WaitGroup
	for _, m := range w.machines {
		watching.Go(func() { w.scrape(ctx, m) })
		watching.Go(func() { w.supervise(ctx, m) })
	}
	watching.Go(func() { w.superviseBroker(ctx) })
	watching.Wait()
}

// Keys of record.Run.Counters: requests that a node did not keep, and notifications that were not
// sent.
const (
	lostRequests      = "requests"
	lostNotifications = "notifications"
)

// counter is a metric of the product. Only series with the label value count; if it is empty, all
// do. tells is the key of their sum in record.Run.Counters.
type counter struct{ name, label, tells string }

// counted are the counters that the judge has to know.
func counted() []counter {
	return []counter{
		{"holdfast_requests_total", "dropped", lostRequests},
		{"holdfast_notifications_given_up_total", "", lostNotifications},
		{"holdfast_notifications_total", "given_up", lostNotifications},
		{"holdfast_notifications_total", "expired", lostNotifications},
		{"holdfast_publish_abandoned_total", "notification", lostNotifications},
	}
}

func (c *counter) counts(series string) bool {
	name, labels, _ := strings.Cut(series, "{")
	return name == c.name && (c.label == "" || strings.Contains(labels, strconv.Quote(c.label)))
}

// scrape reads a machine's metrics, twice a second.
func (w *world) scrape(ctx context.Context, m *machine) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	last := make(map[string]float64) // values of the counted series at the last scrape
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		metrics, err := readMetrics(ctx, "http://"+m.ClientIP+":7402/metrics")
		if err != nil {
			m.recordMetrics(false, 0, 0)
			continue
		}
		leads, term := metrics["holdfast_leader"] == 1, uint64(metrics["holdfast_raft_term"])
		if m.recordMetrics(leads, term, int(metrics["holdfast_members_answering"])) {
			w.addLeading(record.Leading{At: record.Duration(w.now()), Node: m.ID, Term: term})
		}
		w.addSample(record.Sample{
			At: record.Duration(w.now()), Node: m.ID,
			Resident: int64(metrics["process_resident_memory_bytes"]),
			UnderWay: int64(metrics["holdfast_requests_under_way"]),
			Unsent:   int64(metrics["holdfast_notifications_unpublished"]),
		})
		w.addCounters(metrics, last)
	}
}

// addCounters adds to Run.Counters by how much the counters have grown since the last scrape. A
// counter that went back belongs to a new process.
func (w *world) addCounters(metrics, last map[string]float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for series, value := range metrics {
		for _, c := range counted() {
			if !c.counts(series) {
				continue
			}
			before := last[series]
			if value < before {
				before = 0
			}
			w.run.Counters[c.tells] += value - before
			last[series] = value
		}
	}
}

func (w *world) addLeading(l record.Leading) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, known := range w.run.Leaders {
		if known.Node == l.Node && known.Term == l.Term {
			return // the same leadership: a scrape in between had failed
		}
	}
	w.run.Leaders = append(w.run.Leaders, l)
}

func (w *world) addSample(s record.Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run.Samples = append(w.run.Samples, s)
}

// recordMetrics stores what a machine's metrics say, and reports whether it has begun to lead in
// this term.
func (m *machine) recordMetrics(leads bool, term uint64, answering int) (began bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	began = leads && (!m.leads || m.term != term)
	m.leads, m.term, m.answers = leads, term, answering
	return began
}

// readMetrics reads metrics in Prometheus' text format, by series.
func readMetrics(ctx context.Context, address string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // only read
	metrics := make(map[string]float64)
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		if value, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			metrics[line[:at]] = value
		}
	}
	return metrics, nil
}

// supervise starts a machine again when its node has ended by itself, as a service manager would.
// If the disk is damaged, or the node was removed from the cluster, it first empties the disk, as
// an operator would.
func (w *world) supervise(ctx context.Context, m *machine) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !m.alive() {
			w.revive(ctx, m)
		}
	}
}

// revive starts a machine again whose node has ended by itself.
func (w *world) revive(ctx context.Context, m *machine) {
	m.life.Lock()
	defer m.life.Unlock()
	if m.held() || m.running(ctx) || ctx.Err() != nil {
		return
	}
	output := m.logs(ctx, 40)
	excused, useless := m.reasons()
	w.say("%s has ended by itself (excused %v, useless %v): %s", m.ID, excused, useless,
		lastLine(output))
	// Even a node with a reason to end must exit with an error, and not panic.
	if !excused || strings.Contains(output, "panic:") || strings.Contains(output, "goroutine ") {
		w.fail("%s has ended by itself: %s", m.ID, output)
	}
	if useless {
		w.say("the disk of %s is emptied", m.ID)
		if err := m.wipe(); err != nil {
			w.fail("%s cannot be emptied: %v", m.ID, err)
		}
	}
	if err := m.start(ctx); err != nil {
		w.say("%s does not start: %v", m.ID, err)
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// superviseBroker starts the broker again when it has ended by itself.
func (w *world) superviseBroker(ctx context.Context) {
	for sleep(ctx, 5*time.Second) {
		if !w.brokerLock.TryLock() {
			continue
		}
		if pid, err := w.broker.pid(ctx); err == nil && pid == "0" && ctx.Err() == nil {
			w.fail("the broker has ended by itself: %s", w.broker.logs(ctx, 5))
			if err := w.broker.do(ctx, "start"); err != nil {
				w.say("%v", err)
			}
		}
		w.brokerLock.Unlock()
	}
}
