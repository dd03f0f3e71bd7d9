// Package report writes the report of a run of the chaos harness.
package report

import (
	"cmp"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/test/chaos/record"
	"holdfast/test/history"
)

//go:embed report.html.tmpl
var templates embed.FS

// Report is what is shown of a run.
type Report struct {
	run      *record.Run
	history  *history.History
	findings *history.Findings
	lasted   time.Duration
}

// New returns the report of a run.
func New(run *record.Run, h *history.History, findings *history.Findings) *Report {
	slices.SortFunc(run.Faults, func(a, b record.Fault) int { return cmp.Compare(a.From, b.From) })
	return &Report{run, h, findings, time.Duration(run.Lasted)}
}

// Write writes the report into a folder: report.html, which needs no other file, and the plots
// beside.
func (r *Report) Write(folder string) error {
	plots := make(map[string]template.URL)
	for name, plot := range map[string]func(string) error{
		"latency":    r.latency,
		"throughput": r.throughput, "memory": r.memory,
	} {
		path := filepath.Join(folder, name+".png")
		if err := plot(path); err != nil {
			return err
		}
		picture, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		plots[name] = template.URL("data:image/png;base64," +
			base64.StdEncoding.EncodeToString(picture)) //nolint:gosec // it is our own
	}
	picture, err := os.ReadFile(filepath.Join(folder, "linearizability.html"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	page, err := template.ParseFS(templates, "report.html.tmpl")
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(folder, "report.html"))
	if err != nil {
		return err
	}
	content := map[string]any{
		"Run": r.run, "Plots": plots, "Verdicts": r.verdicts(), "Violations": r.findings.Violations,
		"Windows": r.windows(), "Kinds": r.kinds(),
		"Numbers": r.numbers(), "Well": len(r.findings.Violations) == 0, "Picture": string(picture),
	}
	return errors.Join(page.Execute(file, content), file.Close())
}

// Verdict is the result of one check. Says is the promise that it checks.
type Verdict struct {
	Check, Says string
	Count       int    // number of violations
	But         string // what was not checked, or not in full
}

// verdicts returns the verdict of each check, in the order of the report.
func (r *Report) verdicts() (verdicts []Verdict) {
	count := make(map[string]int)
	for _, v := range r.findings.Violations {
		count[v.Check]++
	}
	for _, v := range [][2]string{
		{"linearizability", "one order of all operations on each key explains every reply"},
		{"acknowledged write lost", "what was acknowledged is there"},
		{"exactly once", "a request that is sent again takes effect once"},
		{"effect after an error", "what was refused had no effect"},
		{"order of a client", "what a client sends without waiting takes effect in that order"},
		{"versions", "versions grow, in the whole store"},
		{"version ahead", "no version is from the future"},
		{"fencing", "no write with an older token after one with a newer"},
		{"lock lost early", "while somebody holds a lock nobody else gets it"},
		{"element added twice", "each element of a set is added once"},
		{"element lost", "each element stays"},
		{"expired early", "no key expires early"},
		{"never expired", "each key with an expiry expires"},
		{"notifications", "notifications are complete and in order, repeated only from some point to the end"},
		{"recovery", "service is back within 10 s of the last fault"},
		{"replicas differ", "all replicas have the same state at the end"},
		{"bounds", "memory is bounded"},
		{"odd reply", "every reply is one of the protocol, and has an explanation"},
		{"scan", "a scan finds each key that is there throughout, and sees its client's writes"},
		{"transaction", "a transaction takes effect as a whole, or not at all"},
		{"harness", "nodes end and join only with a reason"},
	} {
		verdicts = append(verdicts, Verdict{v[0], v[1], count[v[0]], r.but(v[0])})
		delete(count, v[0])
	}
	for _, check := range slices.Sorted(maps.Keys(count)) {
		verdicts = append(verdicts,
			Verdict{
				Check: check, Says: check + ": a check without a row of its own",
				Count: count[check],
			})
	}
	return verdicts
}

// but returns what a check did not cover, or "".
func (r *Report) but(check string) string {
	switch {
	case check == "linearizability" && r.findings.Undecided > 0:
		return fmt.Sprintf("%d keys took too long to check", r.findings.Undecided)
	case check == "order of a client" && !r.findings.Ordered:
		return "not checked: requests may have passed the leader by"
	case check == "notifications" && !r.findings.Complete:
		return "completeness not checked: the broker, or a bound, may have dropped some"
	default:
		return ""
	}
}

// Recovered returns the time from the end of the last fault to the first reply that acknowledges a
// SET, and whether there was one.
func Recovered(run *record.Run, h *history.History) (took time.Duration, ever bool) {
	healed := time.Duration(run.Healed)
	for _, o := range h.Ops {
		if o.Verb != history.Set || !o.Applied() || o.Replied < healed {
			continue
		}
		if !ever || o.Replied-healed < took {
			took, ever = o.Replied-healed, true
		}
	}
	return took, ever
}

// Number is a named figure of a run, as text.
type Number struct{ Name, Value string }

func (r *Report) numbers() []Number {
	answered, unknown := 0, 0
	for _, o := range r.history.Ops {
		if o.Known {
			answered++
		} else {
			unknown++
		}
	}
	effects := 0
	for _, f := range r.run.Faults {
		if f.Effect {
			effects++
		}
	}
	longest := time.Duration(0)
	for _, w := range r.windows() {
		longest = max(longest, w.Lasted)
	}
	memory := int64(0)
	for _, s := range r.run.Samples {
		memory = max(memory, s.Resident)
	}
	return []Number{
		{"operations answered", fmt.Sprint(answered)},
		{"operations with unknown outcome", fmt.Sprint(unknown)},
		{"faults (with an effect)", fmt.Sprintf("%d (%d)", len(r.run.Faults), effects)},
		{"leader changes", fmt.Sprint(max(len(r.run.Leaders)-1, 0))},
		{"longest time without an answer", longest.Round(time.Millisecond).String()},
		{"service back after the last fault", r.recovered()},
		{
			"keys held against the model (undecided)",
			fmt.Sprintf("%d (%d)", r.findings.Checked, r.findings.Undecided),
		},
		{"notifications that had to come", r.expected()},
		{"notifications that came again", fmt.Sprint(r.findings.Repeated)},
		{"scans checked (pages)", fmt.Sprintf("%d (%d)", r.findings.Scans, r.findings.Pages)},
		{"sums of all accounts of a bank checked", fmt.Sprint(r.findings.Sums)},
		{"times two clients believed to hold a lock", fmt.Sprint(r.findings.Contested)},
		{"most memory of a node", fmt.Sprintf("%d MiB", memory>>20)},
	}
}

func (r *Report) recovered() string {
	took, ever := Recovered(r.run, r.history)
	if !ever {
		return "never"
	}
	return took.Round(time.Millisecond).String()
}

func (r *Report) expected() string {
	if !r.findings.Complete {
		return "not checked"
	}
	return fmt.Sprint(r.findings.ExpectedNotes)
}

// Kind is how often a kind of fault was injected, and had an effect.
type Kind struct {
	Name           string
	Count, Effects int
}

func (r *Report) kinds() (kinds []Kind) {
	at := make(map[string]int)
	for _, f := range r.run.Faults {
		i, known := at[f.Kind]
		if !known {
			i = len(kinds)
			at[f.Kind] = i
			kinds = append(kinds, Kind{Name: f.Kind})
		}
		kinds[i].Count++
		if f.Effect {
			kinds[i].Effects++
		}
	}
	slices.SortFunc(kinds, func(a, b Kind) int { return strings.Compare(a.Name, b.Name) })
	return kinds
}

// Window is a time between two replies in which no client got one.
type Window struct {
	From, Lasted time.Duration
	Faults       string // kinds of the faults at that time
}

// shortest is the shortest time without an answer that is shown.
const shortest = 2 * time.Second

// windows returns the times of at least shortest between two successive replies. The time after the
// last reply is not one of them.
func (r *Report) windows() (windows []Window) {
	var answers []time.Duration
	for _, o := range r.history.Ops {
		if o.Known && !o.Final {
			answers = append(answers, o.Replied)
		}
	}
	slices.Sort(answers)
	for i := 1; i < len(answers); i++ {
		w := Window{
			From:   answers[i-1].Round(time.Millisecond),
			Lasted: (answers[i] - answers[i-1]).Round(time.Millisecond),
		}
		if w.Lasted < shortest {
			continue
		}
		var during []string
		for _, f := range r.run.Faults {
			if time.Duration(f.From) < answers[i] &&
				time.Duration(f.To) > answers[i-1]-time.Second {
				during = append(during, f.Kind)
			}
		}
		w.Faults = strings.Join(during, ", ")
		windows = append(windows, w)
	}
	return windows
}

// Summary is what is printed at the end.
func (r *Report) Summary() string {
	var text strings.Builder
	for _, n := range r.numbers() {
		fmt.Fprintf(&text, "%-44s %s\n", n.Name, n.Value)
	}
	for _, v := range r.verdicts() {
		if v.Count > 0 {
			fmt.Fprintf(&text, "VIOLATED: %s (%d)\n", v.Check, v.Count)
		}
	}
	for _, v := range r.verdicts() {
		if v.But != "" {
			fmt.Fprintf(&text, "%s: %s\n", v.Check, v.But)
		}
	}
	for i, v := range r.findings.Violations {
		if i == 5 {
			break
		}
		fmt.Fprintf(&text, "  %s: %.600s\n", v.Check, v.Text)
	}
	if len(r.findings.Violations) == 0 {
		text.WriteString("no promise was broken\n")
	} else {
		fmt.Fprintf(&text, "again: %s\nlook for it where a run can be repeated: %s\n",
			r.run.Command, r.run.Search)
	}
	return text.String()
}
