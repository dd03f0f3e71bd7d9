package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
)

// line is one line of a history's file: an operation, a notification and its client, a gap, or an
// element of History.Odd or History.Ahead. The other fields are empty.
type line struct {
	Op     *Op           `json:"op,omitempty"`
	Client string        `json:"client,omitempty"` // client that got Note
	Note   *Notification `json:"note,omitempty"`
	Gap    *Gap          `json:"gap,omitempty"`
	Odd    string        `json:"odd,omitempty"`
	Ahead  string        `json:"ahead,omitempty"`
}

// Save writes a history, a JSON object in each line. Nobody may add to it meanwhile.
func (h *History) Save(w io.Writer) error {
	buffered := bufio.NewWriter(w)
	encoder := json.NewEncoder(buffered)
	var err error
	put := func(l line) {
		if err == nil {
			err = encoder.Encode(l)
		}
	}
	for _, o := range h.Ops {
		put(line{Op: o})
	}
	for client, notes := range h.Notifications {
		for i := range notes {
			put(line{Client: client, Note: &notes[i]})
		}
	}
	for i := range h.Gaps {
		put(line{Gap: &h.Gaps[i]})
	}
	for _, text := range h.Odd {
		put(line{Odd: text})
	}
	for _, text := range h.Ahead {
		put(line{Ahead: text})
	}
	return errors.Join(err, buffered.Flush())
}

// Load reads what Save has written.
func Load(r io.Reader) (*History, error) {
	h := New()
	decoder := json.NewDecoder(bufio.NewReader(r))
	for {
		var l line
		err := decoder.Decode(&l)
		switch {
		case errors.Is(err, io.EOF):
			return h, nil
		case err != nil:
			return nil, err
		case l.Op != nil:
			h.Ops = append(h.Ops, l.Op)
		case l.Note != nil:
			h.Notifications[l.Client] = append(h.Notifications[l.Client], *l.Note)
		case l.Gap != nil:
			h.Gaps = append(h.Gaps, *l.Gap)
		case l.Odd != "":
			h.Odd = append(h.Odd, l.Odd)
		case l.Ahead != "":
			h.Ahead = append(h.Ahead, l.Ahead)
		}
	}
}
