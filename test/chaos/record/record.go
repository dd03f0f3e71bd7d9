// Package record holds what the parts of the harness write down and send each other.
package record

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Duration is a duration that is text in JSON, as in "1.5s".
type Duration time.Duration

// String returns the duration as in "1.5s".
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// Trouble is the set of faults of a machine's disk and of its path to the broker. The harness
// writes it, and the machine reads it.
type Trouble struct {
	SyncDelay   Duration `json:"syncDelay"`
	FailSync    bool     `json:"failSync"`
	DiskFull    bool     `json:"diskFull"`
	DiskHangs   bool     `json:"diskHangs"`
	BrokerDelay Duration `json:"brokerDelay"`
}

// Fault is a fault that was injected.
type Fault struct {
	Kind string   `json:"kind"`
	On   string   `json:"on"`   // nodes, the broker or the clients; for people
	From Duration `json:"from"` // since the beginning of the load
	To   Duration `json:"to"`   // since the beginning of the load
	// an effect was observed (a process ended, a node noticed the cut link, ...); for other kinds,
	// no step failed
	Effect bool   `json:"effect"`
	Note   string `json:"note,omitempty"`
}

// Leading is the beginning of a leadership.
type Leading struct {
	At   Duration `json:"at"`
	Node string   `json:"node"`
	Term uint64   `json:"term"`
}

// Sample is what the metrics of a node said at a moment.
type Sample struct {
	At       Duration `json:"at"`
	Node     string   `json:"node"`
	Resident int64    `json:"resident"` // resident memory in bytes
	UnderWay int64    `json:"underWay"` // requests that the node executes or answers
	Unsent   int64    `json:"unsent"`   // notifications that are not known to be published
}

// Run is what is known of a run beside what the clients saw.
type Run struct {
	Seed     uint64   `json:"seed"`
	Nodes    int      `json:"nodes"`
	Duration Duration `json:"duration"` // for which faults are to be injected
	Lasted   Duration `json:"lasted"`   // how long the load ran
	Command  string   `json:"command"`  // command that repeats the run
	// command that looks for the same failure in the simulation
	Search   string    `json:"search"`
	Settings []string  `json:"settings"` // settings that the seed drew, as text
	Mutant   string    `json:"mutant,omitempty"`
	Faults   []Fault   `json:"faults"`
	Leaders  []Leading `json:"leaders"`
	Samples  []Sample  `json:"samples"`
	// when the last fault was over, since the beginning of the load
	Healed Duration          `json:"healed"`
	Hashes map[string]string `json:"hashes"` // state hash of each node at the end
	// losses that the nodes counted, summed over all their processes
	Counters map[string]float64 `json:"counters"`
	Failures []string           `json:"failures"` // failed checks of the harness itself
	// NotificationsComplete says that the broker's queues have room for what a client misses while
	// it is away.
	NotificationsComplete bool `json:"notesComplete"`
}

// Load is the state of the load, as it tells the harness.
type Load struct {
	Now      Duration `json:"now"` // since its beginning
	Answered int64    `json:"answered"`
	// connections to the broker that its clients have lost
	Disconnects int64 `json:"disconnects"`
}

// Write writes a value as JSON. It is not atomic: a concurrent reader may find a part of the file.
func Write(folder, name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name), append(text, '\n'), 0o644)
}

// Read reads a value from JSON.
func Read(folder, name string, into any) error {
	text, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
