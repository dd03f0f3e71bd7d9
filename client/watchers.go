package client

import (
	"bytes"
	"slices"

	"holdfast/internal/glob"
)

// subject is what a Watcher watches.
type subject struct {
	key    string // a key, or with isGlob a pattern
	isGlob bool
}

// keyNotify returns the KEYNOTIFY that watches the subject.
func (s subject) keyNotify() [][]byte {
	arguments := [][]byte{[]byte("KEYNOTIFY"), []byte(s.key)}
	if s.isGlob {
		arguments = append(arguments, []byte("GLOB"))
	}
	return arguments
}

// keyNotifyStop returns the KEYNOTIFY that ends the watch of the subject.
func (s subject) keyNotifyStop() [][]byte { return append(s.keyNotify(), []byte("STOP")) }

// watchers is the set of a client's watchers, by subject. Client.mu guards it.
type watchers struct {
	bySubject map[subject][]*Watcher    // no list is empty
	patterns  map[subject]*glob.Pattern // the compiled patterns of the subjects that are patterns
}

func newWatchers() watchers {
	return watchers{
		bySubject: make(map[subject][]*Watcher),
		patterns:  make(map[subject]*glob.Pattern),
	}
}

func (s *watchers) add(w *Watcher) {
	s.bySubject[w.watched] = append(s.bySubject[w.watched], w)
	if w.pattern != nil {
		s.patterns[w.watched] = w.pattern
	}
}

// remove removes a watcher and reports whether it was the last of its subject.
func (s *watchers) remove(w *Watcher) bool {
	list := s.bySubject[w.watched]
	at := slices.Index(list, w)
	if at < 0 {
		return false
	}
	if len(list) == 1 {
		s.removeAll(w.watched)
		return true
	}
	s.bySubject[w.watched] = slices.Delete(list, at, at+1)
	return false
}

func (s *watchers) removeAll(watched subject) {
	delete(s.bySubject, watched)
	delete(s.patterns, watched)
}

// deliver queues the change of a key for its watchers, and for the watchers of patterns that the
// key matches. Each watcher gets its own copy of the value.
func (s *watchers) deliver(event Event) {
	deliver := func(list []*Watcher) {
		for _, w := range list {
			event.Value = bytes.Clone(event.Value)
			w.deliverLocked(event)
		}
	}
	deliver(s.bySubject[subject{key: event.Key}])
	if len(event.Key) > glob.MaxWatchedKey { // such a key belongs to no watch of a pattern
		return
	}
	for watched, pattern := range s.patterns {
		if pattern.Match(event.Key) {
			deliver(s.bySubject[watched])
		}
	}
}
